# huggingface.py - the ledger in a transformers Trainer: one callback.
#
# Imported on demand, as it needs transformers: `from invar.huggingface import LedgerCallback`.
#
# A Trainer logs after the end of a step, then evaluates and saves. A step is recorded at its end,
# or, if the Trainer will log, together with the logged numbers. It is never recorded without them:
# the same step, repeated after a resume, would then contradict its first record. A checkpoint keeps
# the ledger's state in trainer_state.json, where Trainers keep the states of callbacks.
# SPDX-License-Identifier: Apache-2.0
"""A TrainerCallback that records every optimizer step."""
from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from types import TracebackType
from typing import Any, Mapping, Optional, Type

from transformers import trainer_callback  # type: ignore[import-not-found,unused-ignore]

from invar.hashing import Digests, hash_gradients, hash_tensors
from invar.ledger import Ledger, Path, flat, ledger_file
from invar.tensors import is_tensor

# Keys of TrainingArguments that name a run or control its output, and change no number of it.
FREE = {"output_dir", "logging_dir", "run_name", "project", "report_to", "hub_token",
        "hub_model_id", "push_to_hub_token", "disable_tqdm", "log_level", "save_steps",
        "save_strategy", "save_total_limit", "resume_from_checkpoint",
        "restore_callback_states_from_checkpoint"}
TIMES = ("_runtime", "_per_second", "_time")  # suffixes of the names of measured times

_open: "weakref.WeakSet[LedgerCallback]" = weakref.WeakSet()


@atexit.register
def _end() -> None:
    for callback in list(_open):
        callback.fail(RuntimeError("the program ended before the training did"))


def _numbers(logs: Optional[Mapping[str, Any]]) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items()
            if isinstance(value, (int, float))}


class LedgerCallback(trainer_callback.TrainerCallback,  # type: ignore[misc,unused-ignore]
                     trainer_callback.ExportableState):  # type: ignore[misc,unused-ignore]
    """Records every optimizer step of a transformers.Trainer.

        with LedgerCallback("runs/a") as ledger:
            Trainer(..., callbacks=[ledger]).train()

    path        path of the ledger, as for invar.Ledger
    run         the name of the run; None for the name of the folder
    config      what may change the bits, in addition to the TrainingArguments: data, model
    gradients   also hash the gradients, as the optimizer reads them (after clipping)

    Metrics that the Trainer logs after a step are recorded with it: use `logging_steps=1` for the
    loss of every step. The `with` block records an exception of the training; without it, a
    training that failed is recorded when the next one begins, or the program ends.
    """

    def __init__(self, path: Path, *, run: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, gradients: bool = True) -> None:
        self.path, self.run, self.config, self.gradients = path, run, dict(config or {}), gradients
        self.ledger: Optional[Ledger] = None
        self.saved: Optional[dict[str, Any]] = None  # state of the ledger in the checkpoint
        self._hook: Any = None
        self._from: dict[str, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._pending: Optional[Digests] = None
        self._grads, self._batch = Digests(), Digests()
        self._batches = 0
        self._hashed = True
        self._logs: dict[str, float] = {}

    def _flush(self) -> None:
        """Records the step that has ended, with the numbers that were logged after it."""
        if self.ledger is not None and self._pending is not None:
            known = self._hashed and self._batches
            self.ledger.step(self._pending, metrics=self._logs,
                             batch=self._batch if known else None)
            self._recorded, self._late = True, False
            self._clear()

    # ---- the beginning and the end -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint. A step that waits for its log has no state."""
        self.saved = None
        if self.ledger is not None and self._pending is None:
            self.saved = {**self.ledger.state(), "from": self._from}
        return {"args": {"path": os.fspath(self.path), "run": self.run,
                         "config": dict(flat(self.config, "config")),
                         "gradients": self.gradients},
                "attributes": {"saved": self.saved}}

    def _found(self, state: Any) -> Optional[dict[str, Any]]:
        """Returns this ledger's state in the checkpoint that the training resumes from."""
        if state.global_step == 0:
            return None
        stored = state.stateful_callbacks.get(type(self).__name__) or []
        stored = stored if isinstance(stored, list) else [stored]
        mine = [one for one in stored if one["args"]["path"] == os.fspath(self.path)]
        found: Optional[dict[str, Any]] = (mine or stored or [{"attributes": {"saved": None}}])[
            -1]["attributes"]["saved"]
        return found

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins the run, or resumes the run of the checkpoint."""
        self.fail(RuntimeError("the training before was left without its end"))
        self._clear()
        self._recorded, self._late = True, False
        if not state.is_world_process_zero:
            return
        saved = self._found(state)
        resume = saved if saved is not None and ledger_file(self.path).exists() else None
        if resume is not None:
            self._from = resume["from"]
        # the checkpoint has no ledger, so the steps of this one count from 0
        elif state.global_step > 0:
            self._from = {"step": state.global_step, "chain": saved["chain"] if saved else None}
        else:
            self._from = {}
        settings = {key: value for key, value in args.to_dict().items() if key not in FREE}
        config = {**self.config, "arguments": settings}
        if self._from:
            config["checkpoint"] = self._from
        self.ledger = Ledger(self.path, run=self.run, config=config, resume=resume)
        _open.add(self)
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        # a hook sees the inputs only if one process calls the forward in Python
        if args.n_gpu <= 1 and not args.torch_compile:
            self._hook = kwargs["model"].register_forward_pre_hook(self._see, with_kwargs=True)

    def _leave(self) -> None:
        self.ledger = None
        _open.discard(self)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the run."""
        self._flush()
        if self.ledger is not None:
            self.ledger.finish()
        self._leave()

    def fail(self, error: BaseException) -> None:
        """Ends the run with an exception, if it has not ended. Never raises."""
        if self.ledger is not None:
            with contextlib.suppress(Exception):  # the ledger then records this as its end, too
                self._note_pending()
            self.ledger.fail(error)
        self._leave()

    def _note_pending(self) -> None:
        if self.ledger is not None and self._pending is not None:
            step = self.ledger.last_step + 1
            self.ledger.note("step", f"step {step} has ended, and failed before it was logged",
                             data={"step": step, "digest": self._pending.digest().hex()})

    def __enter__(self) -> "LedgerCallback":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.fail(error or RuntimeError("the training was left without its end"))

    # ---- steps ---------------------------------------------------------------------------------

    def _see(self, model: Any, arguments: Any, named: Any) -> None:
        """Records the inputs of a forward pass of the training."""
        if not model.training or self.ledger is None:
            return
        given = {**{str(i): x for i, x in enumerate(arguments)}, **named}
        try:
            self._batch += hash_tensors({name: x for name, x in given.items() if is_tensor(x)},
                                        kind="data", prefix=f"{self._batches}.")
        # sparse or nested tensors: recording no batch is better than a part of it
        except TypeError:
            self._hashed = False
        self._batches += 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records the previous step, which is complete now."""
        self._flush()
        self._recorded = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hashes the gradients, after clipping."""
        if self.ledger is not None and self.gradients:
            self._grads = hash_gradients(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hashes the new weights."""
        if self.ledger is not None:
            self._pending = self._grads + hash_tensors(kwargs["model"])
            if not control.should_log:
                self._flush()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
               **kwargs: Any) -> None:
        """Collects numbers of the step or of a completed epoch, but no summary with times."""
        numbers = _numbers(logs)
        if self.ledger is None or any(name.endswith(TIMES) for name in numbers):
            return
        if not self._recorded:
            self._logs.update(numbers)
            self._flush()
        elif args.logging_strategy == "epoch" and not self._late and self.ledger.last_step >= 0:
            self.ledger.evaluate("epoch", numbers)
            self._late = True
        else:  # logged by another callback after the step was recorded
            self.ledger.note("log", "logged after the step was recorded", data=numbers)

    # ---- evaluations ---------------------------------------------------------------------------

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None,
                    **kwargs: Any) -> None:
        """Records the results of an evaluation; the prefix of their names names the data set."""
        self._flush()
        numbers = _numbers(metrics)
        prefix = next((name.removesuffix("_runtime") for name in numbers
                       if name.endswith("_runtime")), "eval")
        results = {name.removeprefix(prefix + "_"): value for name, value in numbers.items()
                   if name != "epoch" and not name.endswith(TIMES)}
        if self.ledger is not None and results:
            self.ledger.evaluate(prefix, results)
