"""``dataset``: the batches of a snapshot reader as a ``tf.data.Dataset``."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from trainer_bridge.adapters.tensorflow.element import Element, ListForms, plan
from trainer_bridge.adapters.tensorflow.passes import Passes
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT
from trainer_bridge.readers.snapshot_reader import SnapshotReader


def dataset(
    reader: SnapshotReader,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    stack: Mapping[str, Sequence[str]] | None = None,
    stack_dtype: Literal["float32", "float64"] | None = None,
    sparse: Collection[str] = (),
    to_dense: Mapping[str, Any] | None = None,
    texts: Collection[str] = (),
    row_numbers: bool = False,
    prefetch: int = 2,
) -> tf.data.Dataset:
    """Return the reader's batches as a dataset: whole batches, never rows.

    One pass yields what is left of the reader's epoch, usually all of it; the next pass (of
    ``repeat()``, or an epoch of ``model.fit``) is the next epoch in its own order. A pass that
    is broken off, by looking at the first batch say, puts the reader back to where the pass
    began. Its length is known to Keras; a dataset that was made in the middle of an epoch is
    for the rest of that epoch.

    A reader with ``output="arrow"`` gives its columns one by one as Arrow decoded them, which for
    many columns in the order of the files (``shuffle=False``) is twice as fast; numbers and times
    without nulls, no stacks, no lists.

    Parameters
    ----------
    features
        Which tensors are the features: the name of one, which is then passed alone, or a list
        of names for a dict of tensors; everything else by default.
    label, weight
        Which tensors are the labels (a list yields a dict) and loss weights. With a label an
        element is ``(features, label)`` or ``(features, label, weight)``, as Keras takes it,
        else ``features`` alone. Loss weights of the reader's sampler are taken by default.
    stack
        Matrices to make, ``{name: columns}``: shape (rows, columns), in place of these columns.
        Columns of one dtype that are all that is read of it, in their order, are not copied.
    stack_dtype
        ``"float32"`` or ``"float64"``: the dtype that all columns of stacks are cast to, so that
        counts and means can be one matrix; large integers are rounded.
    sparse, to_dense
        Columns of lists of any length, which are a ``RaggedTensor`` otherwise, as a
        ``SparseTensor`` or as a tensor padded to the longest list of the batch:
        ``to_dense={"tags": True}`` pads with zeros, ``{"tags": -1}`` with -1.
    texts
        Columns of codes (``SnapshotReader(codes=...)``) as ``tf.string``: the words of the
        codes, looked up by TensorFlow.
    row_numbers
        Adds ``row_number``, int64: each row's number in the snapshot.
    prefetch
        How many batches TensorFlow has ready beyond what the reader has. 0: a batch is requested
        when it is needed, and ``reader.state_dict()`` is exactly what was had. Otherwise
        keep a :class:`TrainingProgress`.

    Raises
    ------
    ConfigurationError, UnknownNameError
        For arguments that do not fit the columns read.
    RequestError
        For a column that has no tensor form.

    Errors of the reader are raised by the iteration as ``tf.errors.UnknownError`` or
    ``InvalidArgumentError`` with the reader's message and traceback in theirs.
    """
    if prefetch < 0:
        raise ConfigurationError(f"prefetch={prefetch}: expected 0 or more")
    element = plan(
        reader,
        stack or {},
        ListForms(reader, sparse, to_dense or {}, texts),
        row_numbers,
        stack_dtype,
    )
    roles = Roles.of(element.names, features, label, weight)
    length = reader.remaining()
    passes = Passes(reader, length)
    elements = _whole_passes(passes, element, roles, prefetch)
    elements = elements.apply(tf.data.experimental.assert_cardinality(length))
    options = tf.data.Options()
    # the reader shards by rank; TensorFlow has not to do it again
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # a prefetch that TensorFlow adds by itself would run ahead of what `prefetch` says
    options.experimental_optimization.inject_prefetch = False
    elements = elements.with_options(options)
    # Python functions of a graph are never freed; what they need lives as long as the dataset
    elements._snapshot_passes = passes
    return elements


def _whole_passes(passes: Passes, element: Element, roles: Roles, prefetch: int) -> tf.data.Dataset:
    # with prefetch, a pass is all of its batches but the last, fetched ahead, and then the last:
    # only when that one is requested, the epoch has ended
    reference, length = weakref.ref(passes), passes.length
    signature = element.signature
    dtypes = [spec.dtype for spec in signature]

    def alive() -> Passes:
        referent = reference()
        if referent is None:
            raise RequestError("the dataset of a snapshot reader was deleted while it is read")
        return referent

    # none of these has control flow to convert, and looking for it is most of the set-up
    plain = tf.autograph.experimental.do_not_convert

    def run() -> Iterator[int]:
        return alive().run()

    def take(number: int) -> list[Any]:
        return element.arrays(alive().take(int(number)))

    @plain
    def one_pass(number: Any) -> tf.data.Dataset:
        @plain
        def next_batch(_: Any) -> Any:
            # arrays that are aligned become tensors without a copy, as by dlpack; others are
            # copied, where dlpack would end the process
            arrays = tf.numpy_function(take, [number], dtypes)
            for array, spec in zip(arrays, signature, strict=True):
                array.set_shape(spec.shape)
            return roles(element.tensors(arrays))

        if not prefetch:  # one function instead of two, which every pass prepares again
            return tf.data.Dataset.range(length).map(next_batch)
        ahead = tf.data.Dataset.range(length - 1).map(next_batch)
        last = tf.data.Dataset.range(1).map(next_batch)
        return ahead.prefetch(prefetch).concatenate(last)

    numbers = tf.data.Dataset.from_generator(run, output_signature=tf.TensorSpec((), tf.int64))
    return numbers.flat_map(one_pass)


@dataclass(frozen=True)
class Roles:
    """What makes an element of named tensors."""

    features: str | tuple[str, ...]
    label: str | tuple[str, ...] | None
    weight: str | None

    @classmethod
    def of(
        cls,
        names: Collection[str],
        features: str | Sequence[str] | None,
        label: str | Sequence[str] | None,
        weight: str | None,
    ) -> Roles:
        """Check the requested roles against the tensors that there are.

        Raises
        ------
        UnknownNameError
            For a name that is none of them.
        ConfigurationError
            For a weight without a label, or if no feature is left.
        """
        labels = _as_names(label)
        for name in (*_as_names(features), *labels, *_as_names(weight)):
            if name not in names:
                raise UnknownNameError.of("tensor", name, names)
        if weight is None and label is not None and SAMPLE_WEIGHT in names:
            weight = SAMPLE_WEIGHT
        if weight is not None and label is None:
            raise ConfigurationError(f"weight={weight!r} goes with a label; give label= as well")
        excluded = {*labels, *_as_names(weight)}
        if features is None:
            features = [name for name in names if name not in excluded]
        if not features:
            raise ConfigurationError("no column is left for the features; read more of them")
        return cls(
            features if isinstance(features, str) else tuple(features),
            label if label is None or isinstance(label, str) else tuple(label),
            weight,
        )

    def __call__(self, tensors: Mapping[str, Any]) -> Any:
        parts = [_pick(tensors, self.features)]
        if self.label is not None:
            parts.append(_pick(tensors, self.label))
        if self.weight is not None:
            parts.append(tensors[self.weight])
        return parts[0] if len(parts) == 1 else tuple(parts)


def _as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _pick(tensors: Mapping[str, Any], names: str | tuple[str, ...]) -> Any:
    return tensors[names] if isinstance(names, str) else {name: tensors[name] for name in names}
