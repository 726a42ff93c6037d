"""What every field of a content does: its role, and the parts of it."""

from __future__ import annotations

from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, ListOf, String
from dragoman.dialects.gemini.names import Name, Whole

REFUSED, REPORTED = Treatment.REFUSED, Treatment.REPORTED

TEXT, FILLED, FLAG = String(), String(minimum=1), Boolean()
OBJECT = Anything(object_only=True, depth=32)
MAX_PARTS = 100_000

RESOLUTIONS = ("LOW", "MEDIUM", "HIGH", "ULTRA_HIGH")
RESOLUTION = Name(String(choices=tuple(f"MEDIA_RESOLUTION_{each}" for each in ("UNSPECIFIED", *RESOLUTIONS))))

BLOB = Table(
    name="inlineData",
    fields=(
        Field(
            name="mimeType",
            kind=FILLED,
            required=True,
            note="`image/...`, where the model sees; `text/...`, which is read as a document. Others are refused.",
        ),
        Field(name="data", kind=TEXT, required=True, note="The file in base64, in either alphabet."),
        Field(name="displayName", kind=TEXT, note="The title of a document."),
    ),
)

FILE = Table(
    name="fileData",
    fields=(
        Field(
            name="fileUri",
            kind=FILLED,
            required=True,
            note="An https address of an image (`--image-hosts`). Files of Google's are refused.",
        ),
        Field(name="mimeType", kind=FILLED, note="Of an image; others are refused."),
        Field(name="displayName", kind=TEXT, treatment=REPORTED, note="No effect."),
    ),
)

MEDIA_RESOLUTION = Table(
    name="mediaResolution",
    fields=(
        Field(name="level", kind=RESOLUTION, note="As `generationConfig.mediaResolution`, before it."),
        Field(name="numTokens", kind=Whole(Anything()), treatment=REPORTED, note="The model has its own numbers."),
    ),
)

_LIKE_FILES = tuple(
    Field(name=name, kind=Anything(), treatment=REPORTED, note="About files that are not read here.")
    for name in (
        "videoMetadata",
        "audioMetadata",
        "documentMetadata",
        "spreadsheetMetadata",
        "mediaProcessing",
    )
)

FUNCTION_CALL = Table(
    name="functionCall",
    fields=(
        Field(name="id", kind=TEXT, note="Of the call, by which its response finds it; otherwise by its name."),
        Field(name="name", kind=FILLED, required=True, note="The function."),
        Field(name="args", kind=OBJECT, default={}, note="Its arguments, an object."),
        Field(
            name="partialArgs",
            kind=Anything(),
            treatment=REFUSED,
            neutral=([],),
            note="Calls come whole, in both directions.",
        ),
        Field(name="willContinue", kind=FLAG, treatment=REFUSED, neutral=(False,), note="The same."),
    ),
)

RESPONSE_PART = Table(
    name="function response part",
    fields=(
        Field(name="inlineData", kind=BLOB, note="An image or a text, as in contents."),
        Field(name="fileData", kind=FILE, note="An address of an image."),
        Field(name="mediaResolution", kind=MEDIA_RESOLUTION, note="Of an image."),
        *_LIKE_FILES,
    ),
)

FUNCTION_RESPONSE = Table(
    name="functionResponse",
    fields=(
        Field(name="id", kind=TEXT, note="Of the call that it answers."),
        Field(name="name", kind=FILLED, required=True, note="The function."),
        Field(
            name="response",
            kind=OBJECT,
            default={},
            note="What the model is shown: the value of `output` or `result` where that is all, `Error: ` and that "
            "of `error`, otherwise the whole object as JSON.",
        ),
        Field(name="parts", kind=ListOf(RESPONSE_PART, maximum=1024), note="Images and texts of the result."),
        Field(
            name="willContinue",
            kind=FLAG,
            treatment=REFUSED,
            neutral=(False,),
            note="A function answers once.",
        ),
        Field(name="scheduling", kind=Anything(), treatment=REPORTED, note="The answer waits for all results."),
    ),
)

PART = Table(
    name="part",
    fields=(
        Field(name="text", kind=TEXT, note="A text. A part is one of this and the next four."),
        Field(name="inlineData", kind=BLOB, note="A file in the request itself."),
        Field(name="fileData", kind=FILE, note="A file by its address."),
        Field(name="functionCall", kind=FUNCTION_CALL, note="Of the model's turns."),
        Field(name="functionResponse", kind=FUNCTION_RESPONSE, note="Of the user's turns."),
        Field(
            name="thought",
            kind=FLAG,
            default=False,
            note="The text is the model's reasoning, and is given to the chat template as that.",
        ),
        Field(
            name="thoughtSignature",
            kind=TEXT,
            note="Of a part behind reasoning that was not shown, its text; any other means nothing.",
        ),
        Field(name="mediaResolution", kind=MEDIA_RESOLUTION, note="Of an image."),
        *_LIKE_FILES,
        Field(name="speechMetadata", kind=Anything(), treatment=REPORTED, note="No effect."),
        Field(name="partMetadata", kind=Anything(), treatment=REPORTED, note="Nothing is stored."),
        *(
            Field(name=name, kind=Anything(), treatment=REFUSED, note="Only Google's servers write such parts.")
            for name in (
                "executableCode",
                "codeExecutionResult",
                "toolCall",
                "toolResponse",
                "audioTranscription",
            )
        ),
    ),
)

CONTENT = Table(
    name="content",
    fields=(
        Field(
            name="role",
            kind=String(choices=("user", "model", "function", "system")),
            default="user",
            note="`function` is `user`; neighbours of one role are one turn. `system`, which is not Google's, stays "
            "where it is.",
        ),
        Field(
            name="parts",
            kind=ListOf(PART, maximum=MAX_PARTS),
            required=True,
            note="Separate texts of the user have an empty line between them; those of the model are joined.",
        ),
    ),
)

SYSTEM = Table(
    name="systemInstruction",
    fields=(
        Field(name="role", kind=TEXT, note="Any: it is always the system's."),
        Field(name="parts", kind=ListOf(PART, maximum=1024), required=True, note="Texts."),
    ),
)
