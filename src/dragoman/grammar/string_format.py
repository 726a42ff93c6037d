"""Formats of JSON Schema as regular expressions in Rust's dialect.

Every matching text is valid by the format's own definition. Some leave out rare spellings that many readers handle
wrongly: years before 1000, leap seconds, ``t`` and ``z`` in lower case, names of hosts that begin with ``xn--`` or have
two hyphens there, quoted local parts of mail addresses.
"""

from __future__ import annotations

from typing import NamedTuple


class StringFormat(NamedTuple):
    """``pattern`` is for the whole text; ``max_length`` in characters."""

    pattern: str
    max_length: int | None = None


_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_HOUR_MINUTE}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+\\-]{_HOUR_MINUTE})"

# RFC 3339, appendix A.
_COUNT = "[0-9]{1,9}"
_MINUTES = f"{_COUNT}M(?:{_COUNT}S)?"
_CLOCK = f"T(?:{_COUNT}H(?:{_MINUTES})?|{_MINUTES}|{_COUNT}S)"
_MONTHS = f"{_COUNT}M(?:{_COUNT}D)?"
_DURATION = f"P(?:(?:{_COUNT}Y(?:{_MONTHS})?|{_MONTHS}|{_COUNT}D)(?:{_CLOCK})?|{_CLOCK}|{_COUNT}W)"

# RFC 1123: labels of at most 63 characters, without a hyphen at an end (RFC 5891: nor two as third and fourth).
_ALNUM = "[0-9A-Za-z]"
_INNER = "[0-9A-Za-z\\-]"
_LABEL = f"{_ALNUM}(?:{_INNER}{{0,2}}{_ALNUM}|{_INNER}(?:{_ALNUM}{_INNER}|-{_ALNUM}){_INNER}{{0,58}}{_ALNUM})?"
_HOSTNAME = f"{_LABEL}(?:\\.{_LABEL}){{0,126}}"

# RFC 5321: a local part of at most 64 characters: in one or two pieces, in up to four shorter ones, or in any number.
_ATOM = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~\\-]"
_LOCAL = (
    f"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,31}}\\.{_ATOM}{{1,32}}"
    f"|{_ATOM}{{1,15}}(?:\\.{_ATOM}{{1,15}}){{2,3}}|{_ATOM}(?:\\.?{_ATOM}){{0,31}})"
)
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        f"(?:{_GROUP}:){{1,7}}:",
        *(f"(?:{_GROUP}:){{1,{7 - behind}}}(?::{_GROUP}){{1,{behind}}}" for behind in range(1, 7)),
        f":(?::{_GROUP}){{1,7}}",
        "::",
        # The last two groups as an IPv4 address.
        f"(?:{_GROUP}:){{6}}{_IPV4}",
        f"(?:{_GROUP}:){{1,5}}:{_IPV4}",
        *(f"(?:{_GROUP}:){{1,{5 - behind}}}(?::{_GROUP}){{1,{behind}}}:{_IPV4}" for behind in range(1, 5)),
        f"::(?:{_GROUP}:){{0,5}}{_IPV4}",
    ]
)

# RFC 3986.
_PATH_CHAR = "(?:[0-9A-Za-z._~!$&'()*+,;=:@\\-]|%[0-9A-Fa-f]{2})"
_USER = "(?:[0-9A-Za-z._~!$&'()*+,;=:\\-]|%[0-9A-Fa-f]{2}){1,64}"
_URI_LABEL = "[0-9A-Za-z_](?:[0-9A-Za-z_\\-]{0,61}[0-9A-Za-z_])?"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_AUTHORITY = f"(?:{_USER}@)?(?:\\[(?:{_IPV6})\\]|{_URI_LABEL}(?:\\.{_URI_LABEL}){{0,16}}\\.?)(?::{_PORT})?"
_PATH = f"(?:/{_PATH_CHAR}*)*"
_URI = (
    f"(?:[A-Za-z][0-9A-Za-z+.\\-]*:(?://{_AUTHORITY}{_PATH}|/?{_PATH_CHAR}+{_PATH})|[Ff][Ii][Ll][Ee]://(?:/{_PATH_CHAR}*)+)"
    f"(?:\\?(?:{_PATH_CHAR}|[/?])*)?(?:#(?:{_PATH_CHAR}|[/?])*)?"
)

FORMATS: dict[str, StringFormat] = {
    "date": StringFormat(_DATE),
    "time": StringFormat(_TIME),
    "date-time": StringFormat(f"{_DATE}T{_TIME}"),
    "duration": StringFormat(_DURATION),
    "email": StringFormat(f"{_LOCAL}@{_HOSTNAME}", 254),
    "hostname": StringFormat(_HOSTNAME, 253),
    "ipv4": StringFormat(_IPV4),
    "ipv6": StringFormat(f"(?:{_IPV6})"),
    "uuid": StringFormat("[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"),
    "uri": StringFormat(_URI),
    "json-pointer": StringFormat(r"(?:/(?:[^~/]|~[01])*)*"),
}
