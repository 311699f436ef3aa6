"""Owns how a model's tokenizer and chat template are taken from its GGUF file."""

from engine.artifacts.gguf import GgufFile
from engine.chat.template import ChatTemplate
from engine.errors import ModelError
from engine.tokenizer import Tokenizer


def gguf_tokenizer(file: GgufFile, n_vocab: int) -> Tokenizer:
    """The file's tokenizer; ModelError when it has another number of ids than the embedding."""
    tokenizer = Tokenizer.from_metadata(file.get)
    if tokenizer.n_vocab != n_vocab:
        raise ModelError(
            f"{file.shown}: {tokenizer.n_vocab} tokens in its vocabulary, {n_vocab} rows"
        )
    return tokenizer


def gguf_chat_template(file: GgufFile, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The file's own chat template, if it has one."""
    source = file.get("tokenizer.chat_template")
    return None if source is None else chat_template(source, tokenizer)


def chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    """A template with the special texts of a tokenizer."""
    return ChatTemplate(
        source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text,
        adds_bos=tokenizer.adds_bos,
    )
