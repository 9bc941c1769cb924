"""The protocol of scikit-learn's estimators, without scikit-learn.

scikit-learn never has to be installed: what needs its classes (tags, metadata requests, its HTML)
is requested by scikit-learn itself, which is imported by then.
"""

from __future__ import annotations

import html
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, update_wrapper, wraps
from inspect import Parameter, signature
from types import MethodType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from paimon_features.core.errors import (
    MissingExtraError,
    NotFittedError,
    TransformError,
    unknown_name,
)
from paimon_features.transformers.frames import Frame, read_frame, write_frame

OUTPUT_FORMS = ("default", "pandas", "polars")

Method = TypeVar("Method", bound=Callable[..., Any])


class Estimator:
    """Parameters, names and output forms, as scikit-learn's tools expect them of an estimator.

    The constructor of a subclass stores its arguments as they are, under their names, and nothing
    else: they are checked by ``fit``. Every other attribute is part of a fit.
    """

    requestable: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Arguments of each method that metadata routing can request, such as ``sample_weight``."""

    names: tuple[str, ...] | None
    _sklearn_output_config: Mapping[str, str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("transform", "fit_transform"):
            if name in vars(cls):
                setattr(cls, name, with_output_form(vars(cls)[name]))

    @property
    def width(self) -> int:
        """Number of input columns; 0 before it is fitted."""
        raise NotImplementedError

    # -- parameters ------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, as they were passed or set.

        With ``deep`` also those of transformers among them, as ``<name>__<parameter>``.
        """
        out: dict[str, Any] = {}
        for name in _parameters(self):
            out[name] = value = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                out |= {
                    f"{name}__{key}": inner_value for key, inner_value in value.get_params().items()
                }
        return out

    def set_params(self, **params: Any) -> Self:
        """Set parameters, for the next ``fit``; returns itself.

        A fit keeps the parameters that it was fitted with.

        Raises
        ------
        TransformError
            For an unknown parameter.
        """
        parameters = self.get_params(deep=True)
        nested: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if name not in parameters:
                raise TransformError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: "
                    f"{sorted(key for key in parameters if '__' not in key)!r}."
                )
            if rest:
                nested.setdefault(name, {})[rest] = value
            else:
                self._set_param(name, value)
                parameters[name] = value
        for name, inner in nested.items():
            parameters[name].set_params(**inner)
        return self

    def _set_param(self, name: str, value: Any) -> None:
        setattr(self, name, value)

    def __repr__(self) -> str:
        defaults = {name: parameter.default for name, parameter in _parameters(self).items()}
        shown = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if repr(value) != repr(defaults[name])
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return the notebook's view: scikit-learn's diagram if it is imported."""
        if sys.modules.get("sklearn") is not None:
            drawn: str = importlib.import_module("sklearn.utils").estimator_html_repr(self)
            return drawn
        return f"<pre>{html.escape(repr(self))}</pre>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    # -- fitted or not ---------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.width)

    def _unfit(self) -> None:
        """Remove a fit: what ends in ``_``, and what the class has a value for without a fit.

        Everything else is of others: scikit-learn attaches its own to an estimator.
        """
        parameters = _parameters(self)
        for name in list(vars(self)):
            is_fitted = name.endswith("_") and not name.startswith("_")
            if name not in parameters and (is_fitted or hasattr(type(self), name)):
                delattr(self, name)

    def _check_fitted(self) -> None:
        if not self.width:
            raise not_fitted(f"this {type(self).__name__} is not fitted; call fit() first")

    @property
    def n_features_in_(self) -> int:
        """Number of input columns."""
        self._check_fitted()
        return self.width

    @property
    def feature_names_in_(self) -> Any:
        """The names of the columns that it was fitted on, an array of strings.

        Raises
        ------
        AttributeError
            If they had no names.
        """
        self._check_fitted()
        if self.names is None:
            raise AttributeError(
                f"this {type(self).__name__} was fitted on columns without names: it has no "
                "feature_names_in_"
            )
        return np.array(self.names, np.object_)

    def get_feature_names_out(self, input_features: Sequence[str] | None = None) -> Any:
        """Return the names of the output columns, an array of strings.

        ``input_features`` are by default the names of the columns of the fit, or ``x0``, ``x1``
        and so on.

        Raises
        ------
        NotFittedError
            Before a fit.
        TransformError
            For another number of names, or others than those of the fit.
        """
        self._check_fitted()
        if input_features is None:
            names = list(self.names or (f"x{index}" for index in range(self.width)))
        else:
            names = list(map(str, input_features))
            if self.names is not None and names != list(self.names):
                raise TransformError(
                    "input_features is not equal to feature_names_in_: got "
                    f"{', '.join(names)}; it was fitted on {', '.join(self.names)}"
                )
            if len(names) != self.width:
                raise TransformError(
                    "input_features should have length equal to number of features "
                    f"({self.width}), got {len(names)}"
                )
        return np.array(self.names_out(names), np.object_)

    def names_out(self, names: Sequence[str]) -> list[str]:
        """Return the names of the output columns for input columns of these names."""
        raise NotImplementedError

    # -- output forms ----------------------------------------------------------------------------

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set what ``transform`` returns, whatever its input is; returns itself.

        ``'pandas'`` and ``'polars'`` are data frames with the names of the columns; ``'default'``
        is the form of the input; None changes nothing. Without ``set_output``, the setting
        ``transform_output`` of scikit-learn counts, where that is imported.

        Raises
        ------
        TransformError
            For another form.
        """
        if transform is None:
            return self
        if transform not in OUTPUT_FORMS:
            raise TransformError(
                f"set_output(transform={transform!r}); expected one of: {', '.join(OUTPUT_FORMS)}"
            )
        self._sklearn_output_config = {"transform": transform}
        return self

    @property
    def _output_form(self) -> str | None:
        """The form that was set; None for that of the input."""
        chosen = self.__dict__.get("_sklearn_output_config")
        if chosen is not None:
            form = chosen["transform"]
        else:
            sklearn = sys.modules.get("sklearn")
            if sklearn is None or not hasattr(sklearn, "get_config"):
                return None
            form = sklearn.get_config().get("transform_output", "default")
        return None if form == "default" else form

    # -- what scikit-learn requires --------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        utils = importlib.import_module("sklearn.utils")
        flags = self._estimator_flags()
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=flags.get("requires_y", False)),
            transformer_tags=utils.TransformerTags(
                preserves_dtype=[] if flags.get("fixed_dtype") else ["float64"]
            ),
            input_tags=utils.InputTags(
                allow_nan=True,
                categorical=flags.get("categorical", False),
                positive_only=flags.get("positive_only", False),
            ),
        )

    def _estimator_flags(self) -> Mapping[str, bool]:
        """Return which of these hold: requires_y, categorical, positive_only, fixed_dtype."""
        return {}

    def get_metadata_routing(self) -> Any:
        """Return scikit-learn's request for the arguments in ``requestable``."""
        routing = importlib.import_module("sklearn.utils.metadata_routing")
        request = routing.MetadataRequest(owner=self)
        chosen = vars(self).get("_metadata_request", {})
        for method, arguments in self.requestable.items():
            for argument in arguments:
                getattr(request, method).add_request(
                    param=argument, alias=chosen.get((method, argument))
                )
        return request

    def set_fit_request(self, **requests: bool | str | None) -> Self:
        """Set which arguments scikit-learn's metadata routing passes to ``fit``; returns itself."""
        return self._request("fit", requests)

    def set_partial_fit_request(self, **requests: bool | str | None) -> Self:
        """Set which arguments metadata routing passes to ``partial_fit``; returns itself."""
        return self._request("partial_fit", requests)

    def _request(self, method: str, requests: Mapping[str, bool | str | None]) -> Self:
        arguments = self.requestable.get(method, ())
        for argument in requests:
            if argument not in arguments:
                kind = f"argument to request of {type(self).__name__}.{method}"
                raise TransformError(unknown_name(kind, argument, arguments))
        named = {(method, argument): alias for argument, alias in requests.items()}
        self._metadata_request = _Requests({**vars(self).get("_metadata_request", {}), **named})
        return self


class _Requests(dict[tuple[str, str], Any]):
    """Requests by method and argument; scikit-learn's ``clone`` copies them."""

    def __sklearn_clone__(self) -> _Requests:
        return _Requests(self)


def _parameters(of: Any) -> Mapping[str, Parameter]:
    return parameters_of(type(of))  # type: ignore[arg-type]


@cache
def parameters_of(kind: Any) -> Mapping[str, Parameter]:
    """Return the arguments of a constructor, without those that have no name."""
    unnamed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {n: p for n, p in signature(kind).parameters.items() if p.kind not in unnamed}


class AvailableIf:
    """A method that exists only where a check passes; its error is also an AttributeError.

    So ``hasattr`` says whether an estimator has the method with its parameters.
    """

    def __init__(
        self, check: Callable[[Any], Exception | None], method: Callable[..., Any]
    ) -> None:
        self._check, self._method = check, method
        update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, of: Any, kind: type | None = None) -> Any:
        if of is None:
            return self._method
        error = self._check(of)
        if error is not None:
            raise error
        return MethodType(self._method, of)


def available_if(check: Callable[[Any], Exception | None]) -> Callable[[Method], Method]:
    """Return a decorator: the method exists where the check returns no error."""
    return lambda method: AvailableIf(check, method)  # type: ignore[return-value]


def not_fitted(message: str) -> NotFittedError:
    """Return the error of a transformer that is not fitted; also scikit-learn's, if imported."""
    if sys.modules.get("sklearn.exceptions") is not None:
        bridge = importlib.import_module("paimon_features.transformers.sklearn_errors")
        error: NotFittedError = bridge.SklearnNotFittedError(message)
        return error
    return NotFittedError(message)


def with_output_form(method: Method) -> Method:
    """Wrap ``transform`` or ``fit_transform``: the output has the form of ``set_output``."""
    if getattr(method, "_has_output_form", False):
        return method

    @wraps(method)
    def wrapped(self: Estimator, X: Any, *args: object, **kwargs: object) -> Any:
        out = method(self, X, *args, **kwargs)
        if isinstance(X, Frame) or (form := self._output_form) is None:
            return out
        return _as_frame(form, out, X, self)

    wrapped._has_output_form = True  # type: ignore[attr-defined]
    return wrapped  # type: ignore[return-value]


def _as_frame(form: str, out: Any, given: Any, of: Estimator) -> Any:
    if type(out).__module__.startswith("scipy."):
        raise TransformError(
            f"{form} output does not support sparse data. Set sparse_output=False to output "
            f"{form} dataframes or disable {form} output via set_output(transform='default')."
        )
    try:
        importlib.import_module(form)
    except ImportError as error:
        raise MissingExtraError(f"set_output(transform={form!r}) needs the package {form}") from (
            error
        )
    index = getattr(given, "index", None) if _is_pandas(given) else None
    return write_frame(form, read_frame(out), list(of.get_feature_names_out()), index)


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas"
