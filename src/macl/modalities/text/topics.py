"""The embedded corpus: the language topics of Python's own help, by sentence, topic as label."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TITLE_RULE = re.compile(r"([^\w\s])\1+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"*(“])")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FEWEST_WORDS = 6
_FEWEST_SENTENCES = 10
_TEST_EVERY = 5


def load_topics(split: str) -> tuple[list[str], list[str]]:
    """The sentences of "train" or "test" and the topic of each: (N,), (N,).

    Topics quote each other; a sentence is kept once, under the shortest topic that has it, which is
    the one it is about. Topics with too few sentences to be tested are dropped. The text is that of
    the running Python, so counts differ a little between versions.
    """
    from pydoc_data.topics import topics

    by_topic: dict[str, list[str]] = {}
    seen: set[str] = set()
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        own = [s for s in dict.fromkeys(split_sentences(topics[topic])) if s not in seen]
        seen.update(own)
        if len(own) >= _FEWEST_SENTENCES:
            by_topic[topic] = own
    chosen = [
        (sentence, topic)
        for topic in sorted(by_topic)
        for i, sentence in enumerate(by_topic[topic])
        if (i % _TEST_EVERY == _TEST_EVERY - 1) == (split == "test")
    ]
    return [sentence for sentence, _ in chosen], [topic for _, topic in chosen]


def split_sentences(text: str) -> Iterator[str]:
    """Sentences of the paragraphs of `text`, without titles and without what has hardly a word."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in paragraph.splitlines()]
        if len(lines) > 1 and _TITLE_RULE.fullmatch(lines[1]):
            continue
        for sentence in _SENTENCE_END.split(" ".join(lines)):
            if len(_WORD.findall(sentence)) >= _FEWEST_WORDS:
                yield sentence.strip()
