"""The grammar of RocketMQ's SQL-92 conditions, for lark's LALR parser.

Keywords are reserved in any case. NOT binds as in SQL-92: `NOT a = 1` is `NOT (a = 1)`.
"""

from __future__ import annotations

from typing import Final

GRAMMAR: Final = r"""
?start: or_condition

?or_condition: and_condition (_OR and_condition)*
?and_condition: not_condition (_AND not_condition)*
?not_condition: NOT not_condition                       -> negation
              | condition

?condition: operand
          | operand EQUALITY operand                    -> equality
          | operand ORDER operand                       -> order
          | operand BETWEEN operand _AND operand        -> between
          | operand NOT BETWEEN operand _AND operand    -> not_between
          | operand IN _OPEN_PAREN texts _CLOSE_PAREN      -> is_in
          | operand NOT IN _OPEN_PAREN texts _CLOSE_PAREN  -> is_not_in
          | operand PART STRING                         -> has_part
          | operand NOT PART STRING                     -> has_not_part
          | operand IS _NULL                            -> is_null
          | operand IS NOT _NULL                        -> is_not_null

?operand: NAME                                          -> property
        | STRING                                        -> text
        | SIGN? (LONG | DOUBLE)                         -> number
        | (TRUE | FALSE)                                -> truth
        | _OPEN_PAREN or_condition _CLOSE_PAREN         -> nested

texts: STRING (_COMMA STRING)*

NOT.2: /NOT(?![a-z0-9_$])/i
_AND.2: /AND(?![a-z0-9_$])/i
_OR.2: /OR(?![a-z0-9_$])/i
BETWEEN.2: /BETWEEN(?![a-z0-9_$])/i
IN.2: /IN(?![a-z0-9_$])/i
IS.2: /IS(?![a-z0-9_$])/i
_NULL.2: /NULL(?![a-z0-9_$])/i
TRUE.2: /TRUE(?![a-z0-9_$])/i
FALSE.2: /FALSE(?![a-z0-9_$])/i
PART.2: /(?:CONTAINS|STARTSWITH|ENDSWITH)(?![a-z0-9_$])/i
NAME: /[a-z_$][a-z0-9_$]*/i

DOUBLE.2: /[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
LONG: /(?:0|[1-9][0-9]*)l?(?![0-9])/i
STRING: /'[^']*(?:''[^']*)*'/
EQUALITY.3: "=" | "<>"
ORDER: "<=" | ">=" | "<" | ">"
SIGN: "+" | "-"
_OPEN_PAREN: "("
_CLOSE_PAREN: ")"
_COMMA: ","

%ignore /[ \t\n\r\f]+/
%ignore /--[^\n\r]*/
%ignore /\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\//
"""

SPOKEN: Final = {
    "NOT": "NOT", "_AND": "AND", "_OR": "OR", "BETWEEN": "BETWEEN", "IN": "IN", "IS": "IS", "_NULL": "NULL",
    "TRUE": "TRUE", "FALSE": "FALSE", "PART": "CONTAINS, STARTSWITH or ENDSWITH", "NAME": "a property",
    "DOUBLE": "a number", "LONG": "a number", "STRING": "a 'text'", "EQUALITY": "= or <>",
    "ORDER": "<, <=, > or >=", "SIGN": "a sign", "_OPEN_PAREN": "(", "_CLOSE_PAREN": ")", "_COMMA": ",",
    "$END": "the end",
}  # fmt: skip
"""The names of the terminals in error messages."""
