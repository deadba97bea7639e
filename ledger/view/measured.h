/*
 * measured.h - SQL conditions: which recorded numbers of a run were measured.
 *
 * SFT runs of version 0.1.0 recorded zeros for rewards and comparisons that did not exist. Reports
 * and `ledger show` leave them out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_LEDGER_VIEW_MEASURED_H
#define INVAR_LEDGER_VIEW_MEASURED_H

/* SQL, true if the run of the row `x` is an SFT run, which samples nothing. */
#define INVAR_MEASURED_ANSWERS                                                                     \
    "EXISTS (SELECT 1 FROM identity i WHERE i.run = x.run AND i.key = 'loss-type'"                 \
    " AND i.value = 'sft_loss')"

/* SQL, true if the metric of the row `x` was measured. */
#define INVAR_MEASURED_METRIC                                                                      \
    "(x.series NOT IN (SELECT series FROM series WHERE name GLOB 'train/logp_diff_*'"              \
    "   OR name GLOB 'rollout/zero_std/*' OR name IN ('rollout/raw_reward', 'rollout/advantages'," \
    "   'rollout/rollout_log_probs', 'rollout/dynamic_filter/dropped'))"                           \
    "  OR NOT " INVAR_MEASURED_ANSWERS ")"

#endif
