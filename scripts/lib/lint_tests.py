# SPDX-License-Identifier: Apache-2.0
"""Every test case asserts something or says that it is skipped.

A case asserts by one of the framework's macros, or by a function of tests/ that does. It does not leave before the first of
them by a plain `return` (MPSSHIM_SKIP says why and is counted), and it throws no result away of a function that asserts.
Its title has no semicolon: CTest makes two names of such a one, no case has either, and both count as passed."""
import re

import cxx_text

ASSERTS = re.compile(r'\b(?:(?:STATIC_)?(?:REQUIRE|CHECK)(?:_\w+)?|CHECKED_\w+|FAIL(?:_CHECK)?|SUCCEED|MPSSHIM_SKIP|SKIP)\b')
CASE = re.compile(r'^(?:TEMPLATE_)?TEST_CASE(?:_METHOD)?\s*\(', re.MULTILINE)
DEFINITION = re.compile(r'(?<![\w.>])(?:[A-Za-z_]\w*::)*(~?[A-Za-z_]\w*)\s*\((?:[^(){};]|\([^()]*\)|\{\})*\)\s*(?:const\b|noexcept\b|override\b|'
                        r'->\s*[\w:<>&* ]+|:\s*[^;{}]*(?:\{[^{}]*\}[^;{}]*)*)*\s*\{')
LAMBDA = re.compile(r'\b(?:auto|const auto)\s+([A-Za-z_]\w*)\s*=\s*\[[^\]]*\]\s*(?:\([^()]*\))?[^;{}]*\{')
MACRO = re.compile(r'^#define\s+(\w+)\b.*(?:\\\n.*)*', re.MULTILINE)
CALL = re.compile(r'\b([A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>\s*)?[({]')
DECLARED = re.compile(r'\b([A-Z]\w*)\s+[a-z_]\w*\s*[({;]')
NO_FUNCTION = {'if', 'for', 'while', 'switch', 'return', 'catch', 'sizeof', 'static_assert', 'TEST_CASE', 'defined'}
# What a machine, a driver or a build has: whoever leaves for that reason has not tested what the case is about.
ASKS_WHERE = re.compile(r'\bif \(!?(?:on_gpu|is_cpu_driver|is_cpu_device|kIs\w+|geteuid|has_capability)\b')
THROWN_AWAY = re.compile(r'\(void\)\s*(?:\w+(?:\.|->|::))*(\w+)\(')
INTRODUCES_LAMBDA = re.compile(r'\]\s*(?:\((?:[^()]|\([^()]*\))*\)\s*)?(?:mutable\s*|noexcept\s*|->\s*[\w:<>&* ]+)*$')


def bodies_of(code):
    """(name, body) of functions, lambdas with a name, and macros."""
    for match in MACRO.finditer(code):
        yield match[1], match[0][len('#define ' + match[1]):]
    for pattern in (DEFINITION, LAMBDA):
        for match in pattern.finditer(code):
            if match[1] not in NO_FUNCTION:
                yield match[1], code[match.end() - 1:cxx_text.closing(code, match.end() - 1)]


def names_used(body):
    return {match[1] for match in CALL.finditer(body)} | {match[1] for match in DECLARED.finditer(body)}


def asserting_names(codes):
    """Names of the functions in `codes` that assert, also by others. A name is taken for all that are called so."""
    bodies = [(name, body) for code in codes for name, body in bodies_of(code)]
    asserting = {name for name, body in bodies if ASSERTS.search(body)}
    calls = [(name, names_used(body)) for name, body in bodies]
    while True:
        more = {name for name, used in calls if used & asserting} - asserting
        if not more:
            return asserting
        asserting |= more


def without_lambdas(body):
    """The body with the insides of lambdas as blanks: what they return from is themselves."""
    for match in re.finditer(r'\{', body):
        if INTRODUCES_LAMBDA.search(body[max(0, match.start() - 300):match.start()]):
            end = cxx_text.closing(body, match.start())
            body = body[:match.start() + 1] + cxx_text.BLANK.sub(' ', body[match.start() + 1:end]) + body[end:]
    return body


def first_assertion(body, asserting):
    places = [match.start() for match in ASSERTS.finditer(body)]
    places += [match.start() for pattern in (CALL, DECLARED) for match in pattern.finditer(body) if match[1] in asserting]
    return min(places, default=None)


def leaves_in_silence(body, first):
    """Offsets of `return;` before the first assertion, and of those behind a question about where the case runs."""
    for match in re.finditer(r'\breturn\s*;', without_lambdas(body)):
        if match.start() < first or ASKS_WHERE.search(body[body.rfind(';', 0, match.start()) + 1:match.start()]):
            yield match.start()


def case_findings(code, case, asserting):
    opening = code.find('{', cxx_text.closing(code, case.end() - 1, '()'))
    if opening < 0:
        return
    body = code[opening:cxx_text.closing(code, opening)]
    first = first_assertion(body, asserting)
    if first is None:
        yield case.start(), 'the case asserts nothing'
        return
    for offset in leaves_in_silence(body, first):
        yield opening + offset, 'the case is left before it has asserted what it is about: MPSSHIM_SKIP("why")'
    thrown_away = [match for match in THROWN_AWAY.finditer(body) if match[1] in asserting]
    if thrown_away and not first_assertion(THROWN_AWAY.sub(lambda match: cxx_text.BLANK.sub(' ', match[0]), body), asserting):
        yield opening + thrown_away[0].start(), f'all that the case does is to throw the result of {thrown_away[0][1]}() away'


def findings(root, _wanted):
    files = sorted(path for ending in ('*.cpp', '*.hpp') for path in (root / 'tests').rglob(ending))
    codes = {path: cxx_text.code_of(path.read_text()) for path in files}
    asserting = asserting_names(codes.values()) - NO_FUNCTION
    for path, code in codes.items():
        text = path.read_text()
        for case in CASE.finditer(code):
            if ';' in text[case.end():cxx_text.closing(code, case.end() - 1, '()')]:
                yield f'{path.relative_to(root)}:{cxx_text.line_at(code, case.start())}: CTest splits the title at its semicolon and runs nothing'
            for offset, text in case_findings(code, case, asserting):
                yield f'{path.relative_to(root)}:{cxx_text.line_at(code, offset)}: {text}'
