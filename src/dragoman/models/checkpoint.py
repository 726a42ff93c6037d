"""Checkpoint: the parameters of a decoder, found among the tensors of its files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.families import Family
from dragoman.models.parameter import Parameter
from dragoman.models.parameters import parameters, seeing
from dragoman.models.settings import PRECISIONS
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import BLOCK_SIZES, ELEMENTS, Format, Quantized, Tensor, TensorFiles, to_float32
from dragoman.models.vision.parameters import PROJECT_NORM, is_vision, vision_parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Matrices whose kernels can reorder their inputs (act-order).
_NETWORKS = ("feed_forward", "expert", "shared_expert")
_MAY_BE_ORDERED = {"qkv", "attention_out", "head", *(f"{name}_{half}" for name in _NETWORKS for half in ("in", "out"))}

# Beginnings of the names of what sees, hears, or leads from there into a decoder.
_SOUND = ("audio_", "embed_audio", "speech_")
_OTHER_SENSES = ("vision_", "visual", "multi_modal_projector", "connector", "embed_vision", *_SOUND)


class Checkpoint:
    """Tensors of a model's weight files by parameter; each is read on demand.

    Raises ModelError on a corrupt file, or a tensor that is missing, of the wrong shape or type, or of unknown use:
    a model that silently lacks a tensor would answer wrongly.
    """

    def __init__(self, files: TensorFiles, family: Family, spec: DecoderSpec) -> None:
        self.files = files
        self._family = family
        named = {family.canonical(name): tensor for name, tensor in files.tensors.items()}
        self._tensors = family.divide(spec, named)
        self._drop_base = not any(name.startswith(family.base) for name in self._tensors)
        self.spec = self._without_absent_tower(self._without_absent_bias(self._untie_if_stored_apart(spec)))
        self.parts = {parameter.name: self._find(parameter) for parameter in parameters(self.spec)}
        self._refuse_leftovers()

    @property
    def formats(self) -> dict[str, Format]:
        """Format of each matrix as it is stored; empty where none is quantized and one precision describes all."""
        forms = {
            parameter.name: [part.form or _stored_form(part) for part in self.parts[parameter.name]]
            for parameter in parameters(self.spec)
            if parameter.matrix
        }
        if all(part.form is None for parts in self.parts.values() for part in parts):
            return {}
        formats = {name: widest(found) for name, found in forms.items()}
        for parameter in parameters(self.spec):
            if parameter.matrix and not _may_be_packed(parameter, formats[parameter.name]):
                formats[parameter.name] = Format("int8")
            # Quantized models leave their towers as they were.
            if parameter.matrix and is_vision(parameter) and not any(part.form for part in self.parts[parameter.name]):
                formats[parameter.name] = Format("int8", wide=True)
        return formats

    @property
    def text_only(self) -> str:
        """A sentence about the parts for images or sound that are not loaded; empty where the files have none."""
        senses = _OTHER_SENSES if self.spec.vision is None else _SOUND
        names = (name.removeprefix(self._family.base) for name in self._tensors)
        parts = sorted({name.partition(".")[0] for name in names if name.startswith(senses)})
        return f"text only: {', '.join(parts)} of the files are not loaded" if parts else ""

    def read(self, parameter: Parameter) -> NDArray[Any]:
        """Return a parameter, its parts stacked along the outputs: vectors and tables as float32, matrices as stored.

        That is float32, float16, or bfloat16 as uint16.
        """
        stored = self.parts[parameter.name]
        parts = [part.read() for part in stored]
        if len({part.dtype for part in stored}) > 1:
            parts = [to_float32(part) for part in parts]
        if self._is_transposed(parameter):
            parts = [part.T for part in parts]
        value: NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if (order := self._row_order(parameter)) is not None:
            value = value[order]
        if parameter.matrix:
            return value.reshape(parameter.shape)
        value = to_float32(value).reshape(parameter.shape)
        if (
            not (_is_norm_weight(parameter) and self._family.norm_offset)
            or parameter.module in self._family.whole_norms
        ):
            return value
        with np.errstate(invalid="ignore"):  # a file may hold any bits; a NaN stays one
            return value + np.float32(self._family.norm_offset)

    def codes(self, parameter: Parameter, form: Format) -> Quantized | None:
        """Return a matrix in the numbers of ``form``, its parts stacked; None unless all parts are stored so."""
        if self._is_transposed(parameter):
            return None
        stacked: Quantized | None = None
        for part in self.parts[parameter.name]:
            codes = part.codes(form)
            if codes is None:
                return None
            stacked = codes if stacked is None else stacked.above(codes)
        assert stacked is not None
        if parameter.stored:
            return stacked.reshaped(parameter.shape)
        order = self._row_order(parameter)
        return stacked if order is None else stacked.rows(order)

    def _is_transposed(self, parameter: Parameter) -> bool:
        return parameter.matrix and not self.files.upright and parameter.module in self._family.transposed

    def _find(self, parameter: Parameter) -> tuple[Tensor, ...]:
        modules = self._modules(parameter)
        sizes = parameter.sizes(len(modules))
        found = []
        for module, size in zip(modules, sizes, strict=True):
            name = self._stored_name(module, parameter)
            if name not in self._tensors:
                raise ModelError(f"{self.files.where}: tensor {name} is missing{self._similar(name)}")
            tensor = self._tensors[name]
            shape = parameter.stored or (size, *parameter.shape[1:])
            if self._is_transposed(parameter):
                shape = shape[::-1]
            if parameter.expert is not None and "{expert}" not in module:
                tensor = self._matrix_of_stack(tensor, parameter.expert, shape)
            if tensor.shape != shape and not _is_vector_of_heads(parameter, tensor.shape):
                raise tensor.fail(f"its shape is {list(tensor.shape)}, where the config asks for {list(shape)}")
            if tensor.dtype not in ELEMENTS:
                raise tensor.fail(f"its type {tensor.dtype} is not supported; known: F32, F16, BF16")
            found.append(tensor)
        return tuple(found)

    def _similar(self, name: str) -> str:
        """What to tell who misses a tensor that is there under a longer name, as wrappers around a model save it."""
        longer = next((each for each in self._tensors if each.endswith(f".{name}")), "")
        if not longer and name.partition(".")[0] in self._family.names.get("head", ("",))[0]:
            return "; where the output has the embedding's weights, config.json says so: tie_word_embeddings is true"
        if not longer:
            return ""
        return (
            f"; there is {longer}: save the model itself, not what is around it (merge_and_unload() of PEFT, the "
            "_orig_mod of torch.compile, the module of DistributedDataParallel)"
        )

    def _modules(self, parameter: Parameter) -> tuple[str, ...]:
        """Return the tensor names of a parameter's parts."""
        names = self._family.names.get(f"{parameter.module}.{parameter.kind}") or self._family.names[parameter.module]
        if self._has_other_names(parameter):
            names = self._family.other_names[parameter.module]
        if len(names) == 1 and "{part}" in names[0]:
            return tuple(names[0].replace("{part}", str(part)) for part in range(len(parameter.parts)))
        return names if len(parameter.parts) > 1 else names[:1]  # a table may have rows of its own for added tokens

    def _has_other_names(self, parameter: Parameter) -> bool:
        others = self._family.other_names.get(parameter.module)
        return others is not None and self._stored_name(others[0], parameter) in self._tensors

    def _row_order(self, parameter: Parameter) -> NDArray[np.intp] | None:
        """Return the stored row of each row; parts under other names are in order."""
        return None if self._has_other_names(parameter) else self._family.row_order(self.spec, parameter)

    def _stored_name(self, module: str, parameter: Parameter) -> str:
        if self._drop_base:
            module = module.removeprefix(self._family.base)
        name = module.format(layer=parameter.layer, expert=parameter.expert)
        return name if name in self._tensors else f"{name}.{parameter.kind}"

    def _matrix_of_stack(self, stack: Tensor, expert: int, shape: tuple[int, ...]) -> Tensor:
        assert self.spec.experts is not None
        whole = (self.spec.experts.count, *shape)
        if stack.shape == (whole[0] * whole[1], *whole[2:]):  # one under the other
            return stack.matrix(expert, whole[0])
        if stack.shape != whole:
            raise stack.fail(f"its shape is {list(stack.shape)}, where the config asks for {list(whole)}")
        return stack.matrix(expert)

    def _untie_if_stored_apart(self, spec: DecoderSpec) -> DecoderSpec:
        """Return the spec untied where the file stores an output table that differs from the embedding. Some configs
        call such tables tied; the file is right."""
        if not spec.tied or not spec.causal:
            return spec
        untied = replace(spec, tied=False)
        head = next(p for p in parameters(untied) if p.module == "head")
        if self._stored_name(self._family.names["head"][0], head) not in self._tensors:
            return spec
        embedding = next(p for p in parameters(untied) if p.module == "embedding")
        pairs = zip(self._find(embedding), self._find(head), strict=True)
        return spec if all(np.array_equal(table.read(), output.read()) for table, output in pairs) else untied

    def _without_absent_bias(self, spec: DecoderSpec) -> DecoderSpec:
        """Return the spec without the head's bias where it is not stored: under its own name (BART) it is zero in most
        models."""
        stored = self._family.names.get("head.bias", ())
        if all(name in self._tensors for name in stored):
            return spec
        return replace(spec, output=replace(spec.output, bias=False))

    def _without_absent_tower(self, spec: DecoderSpec) -> DecoderSpec:
        """Return the spec without its vision tower where no tensor of it is stored: the files have the text alone."""
        if spec.vision is None:
            return spec
        tower = vision_parameters(spec.vision)
        names = (self._stored_name(module, parameter) for parameter in tower for module in self._modules(parameter))
        return spec if any(name in self._tensors for name in names) else seeing(spec, None)

    def _refuse_leftovers(self) -> None:
        used = {self._family.canonical(part.name) for parts in self.parts.values() for part in parts}
        if self.spec.tied:
            used |= {f"{name}.weight" for name in self._family.names["head"]}
        left = [
            name
            for name in sorted(self._tensors.keys() - used - self._family.unused(self.spec))
            if self._family.canonical(self._tensors[name].name) not in used  # it may be stored under another name
            and not self._family.ignored.fullmatch(name.removeprefix(self._family.base))
            and not self._is_of_head(name.removeprefix(self._family.base))
            and not _is_bias_of_zeros(self._tensors[name])
        ]
        if left:
            raise self._tensors[left[0]].fail(
                f"is not part of {self.spec.architecture} as its config describes it ({len(left)} such tensors)"
            )

    def _is_of_head(self, name: str) -> bool:
        """Return whether a tensor belongs to the layer that guesses one token more, which is loaded where it drafts."""
        names = self._family.head
        return names is not None and name.startswith(names.layer.format(layers=self.spec.layers))


def _may_be_packed(parameter: Parameter, form: Format) -> bool:
    """Return whether a stored format serves for a parameter: its kernels may have no order of inputs, and its rows may
    not be whole blocks."""
    if form.is_blocks:
        return parameter.shape[1] % BLOCK_SIZES[form.precision][0] == 0
    return not form.order or parameter.module in _MAY_BE_ORDERED


def _is_bias_of_zeros(tensor: Tensor) -> bool:
    """Return whether the tensor is a bias of zeros. Some quantizers store one for each matrix of a model without
    biases."""
    vector = tensor.name.endswith(".bias") and len(tensor.shape) == 1 and tensor.dtype in ELEMENTS
    return vector and not tensor.read().any()


def _is_vector_of_heads(parameter: Parameter, shape: tuple[int, ...]) -> bool:
    """Return whether the shape is ``[heads, head_dim]``, as a vector with a part for each head may be stored, or that
    of a single number."""
    if not shape:  # a number
        return parameter.shape == (1,)
    return not parameter.matrix and shape == (len(parameter.parts), *parameter.parts[:1])


def _is_norm_weight(parameter: Parameter) -> bool:
    """Return whether a parameter is the weight of one of the decoder's norms, or of one that leads to it."""
    own = not is_vision(parameter) or parameter.module == PROJECT_NORM
    return own and parameter.module.endswith("norm") and parameter.kind == "weight"


def widest(forms: Iterable[Format]) -> Format:
    """Return one format for parts that are stored differently: the one with the least loss."""
    distinct = set(forms)
    if len(distinct) == 1:
        return distinct.pop()
    precisions = {"int8" if form.precision not in PRECISIONS else form.precision for form in distinct}
    precision = min((each for each in PRECISIONS if each in precisions), key=PRECISIONS.index)
    return Format("int8" if precision == "int4" else precision)


def _stored_form(tensor: Tensor) -> Format:
    return Format("float32" if tensor.dtype == "float32" else "bfloat16")
