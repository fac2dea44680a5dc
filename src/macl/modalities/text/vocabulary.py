"""A WordPiece vocabulary from the corpus at hand, the same one every time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LARGEST_ALPHABET = 1000


def learn_vocabulary(sentences: Callable[[], Iterable[str]], size: int) -> dict[str, int]:
    """Up to `size` lower-cased word pieces and their ids.

    The trainer of `tokenizers` numbers letters inside words in the order of a random hash and
    breaks ties between merges by those numbers, so two runs over one corpus would differ, and a
    resumed run could not read its own checkpoint. Naming the letters beforehand, in order, takes
    the chance out of it.

    Args:
        sentences: gives a fresh iterator over the corpus; called twice.
        size: number of pieces; a corpus with fewer to offer gives fewer.
    """
    from tokenizers import BertWordPieceTokenizer

    pieces = BertWordPieceTokenizer(lowercase=True)
    letters: Counter[str] = Counter()
    for sentence in sentences():
        letters.update(pieces.normalizer.normalize_str(sentence))
    ranked = sorted(letters, key=lambda letter: (-letters[letter], letter))[:_LARGEST_ALPHABET]
    alphabet = sorted(letter for letter in ranked if not letter.isspace())
    pieces.train_from_iterator(
        sentences(),
        vocab_size=size,
        special_tokens=[*_SPECIAL, *alphabet, *(f"##{letter}" for letter in alphabet)],
        limit_alphabet=_LARGEST_ALPHABET,
        show_progress=False,
    )
    vocabulary: dict[str, int] = pieces.get_vocab()
    return vocabulary
