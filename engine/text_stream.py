"""Owns the text of a growing answer: ids in, whole characters out, nothing ever taken back.

Must not know sessions or stop rules. End-of-generation and unconfirmed ids are never fed.
Whatever the split, all text handed out is the decoding of all ids with `errors="replace"`.
"""

import codecs

from engine.errors import RuntimeFailure
from engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class TextStream:
    """The text of one answer; owned by one thread at a time.

    `feed` only buffers. `drain` hands out what is complete; asking `pending` or draining twice
    neither advances nor loses anything.
    """

    _ready: str
    _held: str
    _finished: bool

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.reset()

    @property
    def pending(self) -> int:
        """UTF-8 bytes of text that `drain` would hand out now."""
        return len(self._ready.encode())

    def feed(self, token_id: int) -> None:
        """Take one more id. InvalidArgument for an id outside the vocabulary: nothing changes.

        RuntimeFailure after `finish`. A replacement character at the end of a token's text is held
        until the next call, as the bytes of an unfinished character are.
        """
        if self._finished:
            raise RuntimeFailure(f"text stream is finished; token id {token_id} came too late")
        text = self._decoder.decode(self._tokenizer.decode((token_id,)))
        whole = text.rstrip(REPLACEMENT)
        self._ready += self._held + whole
        self._held = text[len(whole) :]

    def drain(self) -> str:
        """The complete text since the last call; empty if there is none."""
        text, self._ready = self._ready, ""
        return text

    def finish(self) -> str:
        """All text not yet handed out, an unfinished character as U+FFFD; then nothing more."""
        self._finished = True
        tail = self._decoder.decode(b"", final=True)
        text = self.drain() + self._held + tail
        self._held = ""
        return text

    def reset(self) -> None:
        """Forget everything; the stream is as new."""
        self._decoder.reset()
        self._ready = ""
        self._held = ""
        self._finished = False
