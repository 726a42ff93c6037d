from dragoman.core.errors import BadRequest as BadRequest
from dragoman.core.errors import DragomanError as DragomanError
from dragoman.core.request import FillPrompt as FillPrompt
from dragoman.core.request import TextPrompt as TextPrompt
from dragoman.core.request import TokenPrompt as TokenPrompt
from dragoman.llm.llm import LLM as LLM
from dragoman.llm.outputs import CompletionOutput as CompletionOutput
from dragoman.llm.outputs import OutputDelta as OutputDelta
from dragoman.llm.outputs import RequestOutput as RequestOutput
from dragoman.llm.outputs import ScoreOutput as ScoreOutput
from dragoman.llm.outputs import ToolCall as ToolCall
from dragoman.llm.sampling_params import SamplingParams as SamplingParams
from dragoman.llm.sampling_params import StructuredOutputsParams as StructuredOutputsParams

__version__: str
