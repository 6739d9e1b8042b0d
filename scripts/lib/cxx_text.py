# SPDX-License-Identifier: Apache-2.0
"""C++ sources as the gates read them: which of a file is code, which is comment, which is the inside of a literal."""
import re

# One alternative for each thing that hides the others' beginnings.
TOKENS = re.compile(
    r'(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<raw>R"(?P<fence>[^()\\ ]{0,16})\(.*?\)(?P=fence)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<char>(?<![0-9a-zA-Z])'(?:\\.|[^'\\\n])+')",
    re.DOTALL)
BLANK = re.compile(r'[^\n]')


def code_of(text):
    """The text with comments and the insides of literals as blanks: every character keeps its place."""
    def blank(match):
        if match['comment']:
            return BLANK.sub(' ', match[0])
        return match[0][0] + BLANK.sub(' ', match[0][1:-1]) + match[0][-1]
    return TOKENS.sub(blank, text)


def comments_of(text):
    """(line number, comment) of each comment."""
    for match in TOKENS.finditer(text):
        if match['comment']:
            yield text.count('\n', 0, match.start()) + 1, match['comment']


def line_at(text, offset):
    return text.count('\n', 0, offset) + 1


def closing(code, opening, brackets='{}'):
    """Where the bracket at `opening` is closed; the end of the text if nowhere."""
    depth = 0
    for match in re.compile('[' + re.escape(brackets) + ']').finditer(code, opening):
        depth += 1 if match[0] == brackets[0] else -1
        if depth == 0:
            return match.start()
    return len(code)
