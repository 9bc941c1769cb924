"""Feedback from ``model.fit``: the loss of each sample of each step, by a Keras callback."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from trainer_bridge.feedback.writer import FeedbackWriter

PerSample = Callable[[Any, Any], Any]
"""Of ``(y, y_pred)``: a value, or several, per sample."""

_SEEN = "__feedback"


class FeedbackCallback(keras.callbacks.Callback):
    """Writes what ``model.fit`` sees of each training sample.

    The dataset yields the features as a dict, and among them the sample keys; the callback takes
    the keys out before the model sees them. It writes the losses of each step from before the
    optimiser's update, without sample and class weights and without regularisation.

    A call is numbered by ``optimizer.iterations``. That number is part of every checkpoint of
    the model and its optimiser, so ``ModelCheckpoint`` and ``BackupAndRestore`` keep the place
    in the feedback without more; and before either of them saves, the callback commits what was
    written. A run that is repeated from such a checkpoint, with the same ``run_id``, writes the
    steps that are missing and none twice.

    The writer stays the caller's: open it in a ``with`` around ``fit``, so that it is closed
    also when ``fit`` raises. The callback commits at the end of each epoch and of the training.

    Parameters
    ----------
    writer
        A feedback writer that has written nothing yet, or was written to by this callback.
    keys
        Which of the features are the sample keys; those of the writer by default.
    features
        The only other feature, which then reaches the model by itself and not in a dict.
    loss
        Losses per sample of ``(y, y_pred)``: values of shape ``(samples, ...)`` are averaged to
        one per sample. That of ``model.compile`` by default.
    correct
        Whether each prediction was right, of ``(y, y_pred)``; not recorded by default.

    Raises
    ------
    ConfigurationError
        At the start of ``fit``, for what cannot be distinguished by sample: several replicas,
        ``steps_per_execution`` above 1, a model without one loss; for keys of text under XLA.
    UnknownNameError, RequestError
        At the first step, for features without the keys.
    """

    def __init__(
        self,
        writer: FeedbackWriter,
        *,
        keys: Sequence[str] | None = None,
        features: str | None = None,
        loss: PerSample | None = None,
        correct: PerSample | None = None,
    ) -> None:
        super().__init__()
        self.writer = writer
        self.keys = list(writer.sample_keys if keys is None else keys)
        if sorted(self.keys) != sorted(writer.sample_keys):
            raise ConfigurationError(
                f"keys={self.keys}: the writer has the sample keys {list(writer.sample_keys)}"
            )
        self.features, self._loss, self._correct = features, loss, correct
        self._begun = False

    # --- what Keras calls ---

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        _check(model)
        per_sample = self._loss or _loss_of(model)
        # a function made for this model before knows nothing of the step below
        _restore(model)
        step = _Step(model, self.keys, self.features, per_sample, self._correct)
        model.train_step = step

    def on_train_begin(self, logs: Any = None) -> None:
        model = self.model
        run = model.train_function

        def watched(iterator: Any) -> Any:
            try:
                result = dict(run(iterator))
                self._write(result.pop(_SEEN))
            except (StopIteration, tf.errors.OutOfRangeError):
                raise  # the end of the data
            except BaseException:
                _restore(model)
                raise
            return result

        model.train_function = watched
        for name in ("save", "save_weights"):
            setattr(model, name, self._committed_first(getattr(model, name)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        _restore(self.model)
        self.writer.flush()

    # --- inside ---

    def _write(self, seen: Mapping[str, Any]) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        if not self._begun:
            self._begin(step - 1)
        correct = seen.get("correct")
        self.writer.write(
            {name: _host(seen["keys"][name]) for name in self.keys},
            _host(seen["loss"]),
            step,
            None if correct is None else _host(correct),
            seq=step,
        )

    def _begin(self, before: int) -> None:
        self._begun = True
        if self.writer.seq:
            return
        committed = self.writer.committed
        if 0 < committed < before:
            warnings.warn(
                f"the feedback of run {self.writer.run_id!r} ends at step {committed}, and the "
                f"model continues after step {before}: the steps between were trained without "
                "feedback, or the table was rolled back",
                stacklevel=2,
            )
        self.writer.resume_after(before)

    def _committed_first(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def saving(*args: Any, **kwargs: Any) -> Any:
            self.writer.flush()
            return save(*args, **kwargs)

        return saving


class _Step:
    """The model's training step, which also returns what it saw of each sample."""

    def __init__(
        self,
        model: Any,
        keys: Sequence[str],
        features: str | None,
        loss: PerSample,
        correct: PerSample | None,
    ) -> None:
        self.model, self.keys, self.features = model, keys, features
        self.loss, self.correct = loss, correct
        self.step = model.train_step

    def __call__(self, data: Any) -> dict[str, Any]:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        keys, rest = self._split(x)
        arguments: dict[str, Any] = {}
        compute_loss = self.model.compute_loss

        def kept(*args: Any, **kwargs: Any) -> Any:
            names = ("x", "y", "y_pred")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            arguments.update(y=given.get("y"), y_pred=given.get("y_pred"))
            return compute_loss(*args, **kwargs)

        self.model.compute_loss = kept
        try:
            logs = self.step(keras.utils.pack_x_y_sample_weight(rest, y, weight))
        finally:
            del self.model.compute_loss
        if "y_pred" not in arguments:
            raise ConfigurationError(
                f"the train_step of {type(self.model).__name__} does not call compute_loss: write "
                "the feedback in that train_step's loop yourself (FeedbackWriter.write)"
            )
        pair = (arguments["y"], arguments["y_pred"])
        seen = {"keys": keys, "loss": _per_sample(self.loss(*pair))}
        if self.correct is not None:
            seen["correct"] = _per_sample(self.correct(*pair), bool)
        return {**logs, _SEEN: seen}

    def _split(self, x: Any) -> tuple[dict[str, Any], Any]:
        if not isinstance(x, Mapping):
            raise RequestError(
                f"the features are a {type(x).__name__}; expected a dict with the sample keys "
                f"{', '.join(self.keys)} among them"
            )
        for name in (*self.keys, *([self.features] if self.features else [])):
            if name not in x:
                raise UnknownNameError.of("feature", name, x, "the dataset")
        keys = {name: tf.convert_to_tensor(x[name]) for name in self.keys}
        texts = [name for name, values in keys.items() if values.dtype == tf.string]
        if texts and self.model.jit_compile:
            raise ConfigurationError(
                f"the sample key {texts[0]!r} is text, which XLA does not take: "
                "model.compile(..., jit_compile=False)"
            )
        if self.features is not None:
            return keys, x[self.features]
        return keys, {name: values for name, values in x.items() if name not in keys}


def _check(model: Any) -> None:
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ConfigurationError(
            f"feedback of {model.distribute_strategy.num_replicas_in_sync} replicas in one "
            "process: fit returns what one of them saw; train with a process per replica, or "
            "write the feedback in a training loop of your own"
        )
    if model.steps_per_execution != 1:
        raise ConfigurationError(
            f"steps_per_execution={model.steps_per_execution}: fit returns what the last of them "
            "saw; compile the model with steps_per_execution=1"
        )


def _loss_of(model: Any) -> PerSample:
    loss = model.loss
    if loss is None or isinstance(loss, list | tuple | dict):
        raise ConfigurationError(
            f"the model was compiled with loss={loss!r}: say what the loss of a sample is, by "
            "FeedbackCallback(..., loss=lambda y, y_pred: ...)"
        )
    function = keras.losses.get(loss)
    # of a Loss the values before they are reduced over the batch
    return function.call if isinstance(function, keras.losses.Loss) else function


def _per_sample(values: Any, kind: type = float) -> Any:
    """Return one value per sample: the mean of what a sample has, or whether all of it is true."""
    values = tf.convert_to_tensor(values)
    if kind is bool:
        values = tf.cast(values, tf.bool)
    if values.shape.rank is not None and values.shape.rank <= 1:
        return values
    rest = list(range(1, len(values.shape)))
    return tf.reduce_all(values, rest) if kind is bool else tf.reduce_mean(values, rest)


def _restore(model: Any) -> None:
    """Take away what a feedback callback put on a model; harmless where there is nothing."""
    for name in ("train_step", "save", "save_weights"):
        if name in vars(model):
            delattr(model, name)
    model.train_function = None


def _host(values: Any) -> Any:
    """Return a tensor's values: NumPy's, texts as such."""
    array = values.numpy()
    return array.astype(str) if array.dtype == object else array
