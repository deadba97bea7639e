# huggingface.py - the ledger in a transformers Trainer: one callback.
#
# Imported on demand, as it needs transformers: `from invar.huggingface import LedgerCallback`.
# SPDX-License-Identifier: Apache-2.0
"""A TrainerCallback that records every optimizer step."""
from __future__ import annotations

from typing import Any, Mapping, Optional

import transformers  # type: ignore[import-not-found,import-untyped,unused-ignore]

from invar.hashing import Digests, hash_gradients, hash_tensors
from invar.ledger import Ledger, Path

# Keys of TrainingArguments that say where and how a run is executed, not what it computes.
FREE = {"output_dir", "logging_dir", "run_name", "report_to", "hub_token", "hub_model_id",
        "push_to_hub_token", "disable_tqdm", "dataloader_num_workers", "logging_steps",
        "logging_strategy", "log_level", "save_steps", "save_strategy", "save_total_limit"}


class LedgerCallback(transformers.TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Records every optimizer step of a transformers.Trainer.

        trainer = Trainer(..., callbacks=[LedgerCallback("runs/a")])

    path        of the ledger, as for invar.Ledger
    run         the name of the run; None: that of the folder
    config      what may change the bits, beside the TrainingArguments: data, model
    gradients   whether gradients are hashed, too. They are those that the optimizer gets.

    Metrics that the Trainer logs after a step are recorded with it: use `logging_steps=1` for the
    loss of every step. Numbers that depend on the machine (`train_runtime`, ...) are left out.
    """

    def __init__(self, path: Path, *, run: Optional[str] = None,
                 config: Optional[Mapping[str, Any]] = None, gradients: bool = True) -> None:
        self.path, self.run, self.config, self.gradients = path, run, dict(config or {}), gradients
        self.ledger: Optional[Ledger] = None
        self._grads = Digests()
        self._pending: Optional[Digests] = None
        self._logs: dict[str, float] = {}

    def _flush(self) -> None:
        """The step that has ended, with what was logged after it."""
        if self.ledger is not None and self._pending is not None:
            self.ledger.step(self._pending, metrics=self._logs)
        self._pending, self._logs, self._grads = None, {}, Digests()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins the run."""
        if not state.is_world_process_zero:
            return
        settings = {key: value for key, value in args.to_dict().items() if key not in FREE}
        self.ledger = Ledger(self.path, run=self.run,
                             config={**self.config, "arguments": settings})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients, after clipping."""
        if self.ledger is not None and self.gradients:
            self._grads = hash_gradients(kwargs["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step before is complete."""
        self._flush()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The new weights."""
        if self.ledger is not None:
            self._pending = self._grads + hash_tensors(kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None,
               **kwargs: Any) -> None:
        """Numbers of the step that has ended."""
        if self._pending is not None:
            self._logs.update({
                name: float(value) for name, value in (logs or {}).items()
                if isinstance(value, (int, float)) and not name.startswith(("eval_", "train_"))})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None,
                    **kwargs: Any) -> None:
        """Results of an evaluation."""
        self._flush()
        if self.ledger is not None:
            self.ledger.evaluate("eval", {
                name: value for name, value in (metrics or {}).items()
                if isinstance(value, (int, float))
                and not name.endswith(("_runtime", "_per_second"))})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the run."""
        self._flush()
        if self.ledger is not None:
            self.ledger.finish()
            self.ledger = None
