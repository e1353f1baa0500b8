"""Noun phrases of a caption without a tagger: closed word classes delimit them.

English function words are a short, closed list; the text between them in a caption is mostly
noun phrases ("base" ones, without "of …" or relative clauses). A word in -ing ends a phrase ("a man
riding waves"), unless it follows a determiner ("a smiling man"), has no vowel before -ing ("a tyre
swing") or is a listed noun ("a tall building"). Limitations, each of which adds or removes a word
in a phrase: an unlisted finite verb is included in the phrase before it ("a man juggles"), and so
is a listed noun that is a verb here ("children building sandcastles"); an unlisted noun ends it;
other languages give one long phrase.
"""

from __future__ import annotations

import re

NAME = "function-words/2"
"""Name and version of these rules. Part of fingerprints: keep in sync with the code."""

_LETTERS = r"(?:[^\W_][\u0300-\u036f]*)+"  # with combining marks
_WORD = re.compile(rf"{_LETTERS}(?:['’.\-]{_LETTERS})*|[^\w\s]|_")

_DETERMINER_WORDS = """
a an the this that these those some any each every no another both all several many few my your his
her its our their one two three four five six seven eight nine ten
"""
_PREPOSITIONS = """
about above across after against along alongside amid among around as at away back before behind
below beneath beside besides between beyond by down during except for from in inside into like near
next of off on onto out outside over past per through throughout to together toward towards under
underneath up upon via while with within without
"""
_CONJUNCTIONS_AND_ADVERBS = """
and or but nor so than then if because although though unless until when where which who whom whose
what how why there here not very too also just only still
"""
_PRONOUNS = """
i you he she it we they me him us them himself herself itself themselves something someone everyone
anyone nobody nothing other others
"""
_AUXILIARIES = """
is are was were be been being am has have had having do does did doing can could will would may
might must shall should
"""
_VERBS_OF_CAPTIONS = """
appears attempts carries catches climbs crosses dances drinks drives eats faces flies gathers gets
gives goes hangs hits holds jogs jumps kicks kneels laughs lays leans leaps lies listens looks makes
moves participates performs plays points poses prepares pulls pushes reaches reads rests rides runs
seems sells sets shows sings sits skates sleeps slides smiles speaks splashes stands stares surfs
swims swings takes talks throws touches tries turns uses waits walks watches waves wears works
writes
"""
_NOUNS_IN_ING = """
awning bedding ceiling clothing darling dressing dumpling duckling earring evening fencing flooring
gosling icing lightning morning parking pudding railing roofing scaffolding seedling sibling sapling
stocking stuffing topping wedding
"""
_NOUNS_OR_VERBS_IN_ING = """
building carving coating covering crossing drawing gathering marking opening painting
"""
_DETERMINERS = frozenset(_DETERMINER_WORDS.split())
_BREAKS = frozenset(
    (
        _PREPOSITIONS + _CONJUNCTIONS_AND_ADVERBS + _PRONOUNS + _AUXILIARIES + _VERBS_OF_CAPTIONS
    ).split()
)
_VOWELS = frozenset("aeiouy")


def noun_phrases(caption: str) -> list[tuple[int, int]]:
    """Spans (start, end) of the noun phrases of a caption, in order, not nested."""
    phrases: list[list[tuple[str, re.Match[str]]]] = [[]]  # of words
    matches = list(_WORD.finditer(caption))
    words = [match[0].casefold() for match in matches]
    for match, word, following in zip(matches, words, [*words, ""][1:], strict=True):
        phrase = phrases[-1]
        if word in _DETERMINERS:
            # "both the dogs" is one phrase, "the dogs the man" two
            if not all(earlier in _DETERMINERS for earlier, _ in phrase):
                phrases.append([])
            phrases[-1].append((word, match))
        elif (
            word in _BREAKS
            or not word[0].isalnum()
            or _is_verb(word, phrase[-1][0] if phrase else "", following)
        ):
            phrases.append([])
        else:
            phrase.append((word, match))
    return [
        (phrase[0][1].start(), phrase[-1][1].end())
        for phrase in phrases
        if any(word not in _DETERMINERS for word, _ in phrase)
    ]


def _is_verb(word: str, before: str, following: str) -> bool:
    """Whether a word in -ing ends a phrase.

    Args:
        before: the word before it in its phrase; empty if it would be the first.
        following: the next word of the caption.
    """
    if not word.endswith("ing") or word in _NOUNS_IN_ING.split() or _VOWELS.isdisjoint(word[:-3]):
        return False
    if word in _NOUNS_OR_VERBS_IN_ING.split():
        return following in _DETERMINERS
    return before not in _DETERMINERS
