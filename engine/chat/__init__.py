"""Owns the public face of chat text: request to prompt, response to message, tools to grammar.

Knows nothing of C, sessions or sampling. Contract: sections 4.1 and 4.2 of the ABI's semantics.
"""

from engine.chat.grammar import tool_grammar
from engine.chat.messages import ChatRequest, Tool
from engine.chat.parse import parse_response, parse_response_bytes
from engine.chat.template import ChatTemplate, RenderedChat

__all__ = [
    "ChatRequest",
    "ChatTemplate",
    "RenderedChat",
    "Tool",
    "parse_response",
    "parse_response_bytes",
    "tool_grammar",
]
