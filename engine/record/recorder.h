/*
 * recorder.h - records the steps of a run: points, ledger entries, trace, dump, console lines.
 *
 *     invar_recorder_begin(recorder, &step, "runs/a");
 *     invar_recorder_watch(recorder, trainer, "");    training passes its activations
 *     ...                                             forward, backward, optimizer
 *     invar_recorder_end(recorder);                   one transaction of the ledger
 *
 * Everything that a run writes about its steps goes through this file. Each rank has a recorder,
 * and rank 0 alone writes; at the end of a step the ranks compare what they would write. No result
 * of a run depends on its recorder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RECORD_RECORDER_H
#define INVAR_ENGINE_RECORD_RECORDER_H

#include "engine/model/probe/rollout_points.h"
#include "engine/ranks/layout/layout.h"
#include "engine/record/throughput.h"
#include "engine/record/trace.h"
#include "engine/rl/loss.h"
#include "engine/rl/token_arrays.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "engine/train/learner.h"

/* ---- a step ---------------------------------------------------------------------------------- */

enum { INVAR_STEP_REPORT_LEARNERS = 2 }; /* actor and critic */
enum { INVAR_TOKEN_POINTS = 8 };         /* points with one number per response token or sample */

/* A learner of a step. */
typedef struct invar_step_report_learner {
    invar_learner *learner;
    invar_loss *loss; /* loss whose metrics are recorded; NULL if there is no loss */
} invar_step_report_learner;

/* Named numbers that a hook measured. */
typedef struct invar_hook_metrics {
    const char *hook;
    invar_reward_parts named;
} invar_hook_metrics;

/* The weights that sampled the rollout of a step. */
typedef struct invar_report_policy {
    int64_t version;   /* weight version at the beginning of the rollout */
    bool own_weights;  /* the weights being trained have sampled the rollout */
    bool other_format; /* sampling used another number format, so log-probs may differ */
    /*
     * rollout and training log-probs must be equal: first step of the rollout, own_weights and not
     * other_format; always set if nothing is trained
     */
    bool on_policy;
} invar_report_policy;

/* Rollout and training, compared. */
typedef struct invar_report_comparison {
    bool compared; /* `logp_diff` is valid: two forwards computed the log-probs */
    /* largest difference between rollout log-probs and those of training, or of scoring */
    invar_logp_diff logp_diff;
    /* expert choices that were compared with recorded ones, and how many differ */
    int64_t routes, routes_differ;
} invar_report_comparison;

/* Groups that are not in the batch of their own rollout. */
typedef struct invar_report_groups {
    int64_t filtered;   /* groups of the rollout that a filter rejected; -1 if unknown */
    bool keeps_surplus; /* the key over-sampling-keep-surplus is set */
    int64_t reused;     /* groups of this batch that an earlier rollout had left over */
    int64_t surplus;    /* groups that this rollout leaves over for the next */
} invar_report_groups;

/* Inputs of a step's ledger entry. Everything is borrowed; zero-initialized, it is empty. */
typedef struct invar_step_report {
    int64_t number;                 /* step of the run, from 0 */
    const invar_rl_sample *samples; /* (flat->samples) samples of the complete rollout */
    const invar_token_arrays *flat; /* per-token arrays of these samples */
    int64_t first, count;           /* the samples [first, first + count) belong to this step */
    /* (count + 1) offsets of this step's samples, from invar_token_arrays_starts */
    const int64_t *start;
    invar_report_policy policy;
    invar_report_comparison comparison;
    invar_report_groups groups;
    int64_t steps_per_rollout; /* optimizer steps of a rollout; each makes a weight version */
    bool recorded_schedule;    /* the groups were chosen by a recorded asynchronous schedule */
    bool supervised;           /* supervised training: nothing was sampled or rewarded */
    bool unrewarded;           /* no reward was computed; `reward` of the samples is meaningless */
    int64_t passes;            /* largest k of the metrics pass@k; 0 for no such metrics */
    uint32_t seed;             /* seed of the rollout */
    invar_step_report_learner learners[INVAR_STEP_REPORT_LEARNERS];
    int n_learners; /* 0 if nothing was trained */
    /* NULL if nothing is audited */
    invar_audit *audit;
    const invar_ledger_plugin_reply *replies; /* (n_replies) replies of plug-ins */
    size_t n_replies;
    bool has_loss_factor; /* a hook has set `factor`, the factor of the policy's loss */
    float factor;
    const invar_hook_metrics *measures; /* (n_measures) numbers measured by hooks */
    size_t n_measures;
} invar_step_report;

/* ---- the recorder ---------------------------------------------------------------------------- */

typedef struct invar_recorder_options {
    invar_probe_level level;
    /* count values that are not finite and find the largest finite one, per point */
    bool stats;
    /*
     * Training points whose tensors are dumped (patterns of invar_dump_new), and the folder; NULL
     * or "" for no dump, and for the run's folder.
     */
    const char *dump, *dump_dir;
    invar_pool *pool;
    const invar_device *dev;
    const invar_device *sampler; /* device that samples, if not `dev`; NULL if it is */
    /* layout of the ranks that record the same steps; NULL if there is one rank */
    const invar_layout *layout;
    bool replay; /* replay: steps that differ from the ledger are recorded instead of rejected */
    int64_t n_keep_samples;           /* number of samples per step whose text is kept */
    const invar_tokenizer *tokenizer; /* decodes the kept samples; NULL to keep none */
    void (*print_line)(void *payload,
                       const char *line); /* prints a line on the console; may be NULL */
    void *payload;
} invar_recorder_options;

/*
 * Points that a pipeline stage collects while it trains. Stages run at different times, so rank 0
 * defines the points of all stages after the last one has finished.
 */
typedef struct invar_recorder_stage {
    invar_probe *probe; /* owned, for this rank's layers only; NULL if there is no pipeline */
    invar_dump *dump;   /* owned; NULL if nothing is dumped */
    invar_point_list listing;
    invar_rank_buffer tasks; /* packed points of each task */
    int64_t n_tasks;
} invar_recorder_stage;

/*
 * Returns INVAR_E_INVALID if a name of the comma-separated list `points` can belong to no point of
 * a step. `layers` is the number of layers of the model, 0 if it is unknown.
 */
invar_status invar_recorder_check_dump(const char *points, int64_t layers) INVAR_MUST_USE;

/* Zero-initialized, it is closed. Close with invar_recorder_close, also after a failure. */
typedef struct invar_recorder {
    invar_recorder_options options;
    invar_ledger *ledger; /* owned once it is open; NULL on a rank that does not write */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t run; /* number of the run in the ledger */
    int64_t
        last_recorded_step; /* last step of the ledger when it was opened; -1 if it had no step */
    invar_trace *trace;     /* owned; NULL if no times are recorded */
    invar_throughput throughput; /* zeroed if throughput is not measured */
    invar_probe *probe;
    invar_recorder_stage stage;
    /* owned points of the rollout that the steps are made from; NULL if they are not recorded */
    invar_rollout_points *sampled;
    invar_point_namer namer; /* names the points of activations */
    /* names of the points that a backward starts from; NULL-terminated */
    const char *loss_inputs[INVAR_TOKEN_POINTS + 1];
    invar_dump *dump;              /* dump of the current step, owned; NULL if nothing is dumped */
    const invar_step_report *step; /* current step; NULL between steps */
    int64_t points;                /* number of points of the last entry */
    uint64_t kept_bytes;           /* bytes of the kept samples of all steps of the run */
    bool ranks_diverged;           /* ranks made different entries, and all ranks know it */
} invar_recorder;

/*
 * Opens a recorder without a ledger and a trace; the caller sets `ledger`, `run`, `uuid`, `trace`
 * and `kept_bytes`, and calls invar_throughput_begin if throughput is to be measured.
 */
invar_status invar_recorder_open(invar_recorder *out,
                                 const invar_recorder_options *options) INVAR_MUST_USE;
void invar_recorder_close(invar_recorder *recorder);

/* Formats a line and passes it to options.print_line; does nothing if that is NULL. */
void invar_recorder_print(const invar_recorder *recorder, const char *fmt, ...) INVAR_PRINTF(2, 3);

/* Private to engine/record. Defines all points of stage.listing on rank 0, in their order. */
invar_status invar_recorder_define_listed_points(invar_recorder *recorder) INVAR_MUST_USE;

/* Writes an event to the ledger at once. Does nothing on a rank without a ledger. */
invar_status invar_recorder_event(invar_recorder *recorder, int64_t step, const char *level,
                                  const char *kind, const char *message) INVAR_MUST_USE;

/* Result of a weight sync before a step: the weights after `version` updates. */
typedef struct invar_recorder_sync {
    int64_t version;
    /* bytes received by all rollout ranks */
    uint64_t bytes;
    double seconds;
    invar_digest hash;
} invar_recorder_sync;

/* Writes an event of kind weight-sync. Does nothing on a rank without a ledger. */
invar_status invar_recorder_record_weight_sync(invar_recorder *recorder, int64_t step,
                                               const invar_recorder_sync *sync) INVAR_MUST_USE;

/*
 * Reads the last step and its chain from the ledger. Leaves both unchanged on a rank without a
 * ledger.
 */
invar_status invar_recorder_chain(int64_t *step_out, invar_digest *chain_out,
                                  const invar_recorder *recorder) INVAR_MUST_USE;

/* Begins a step of the run in `folder`. `step` is borrowed until invar_recorder_end. */
invar_status invar_recorder_begin(invar_recorder *recorder, const invar_step_report *step,
                                  const char *folder) INVAR_MUST_USE;

/*
 * Starts to record the activations of training, with `prefix` before their point names, if points
 * finer than the chain or a dump are wanted. NULL stops it.
 */
void invar_recorder_watch(invar_recorder *recorder, invar_trainer *trainer, const char *prefix);

/*
 * Writes digests, metrics and samples of the step to the ledger and ends the step of the learners:
 * their gradients are zero afterwards. Returns INVAR_E_MISMATCH if a rank computed other results
 * than the majority; the ledger then has the step with the digests of all ranks, and an event.
 * Collective: all ranks of the layout must call it.
 */
invar_status invar_recorder_end(invar_recorder *recorder) INVAR_MUST_USE;

/*
 * Starts to record the activations of a new rollout for the following steps, if points finer than
 * the chain or statistics are wanted. If `watch` is false, it stops. `rollout` is NULL on a rank
 * that does not sample; it then only drops the points of the previous rollout.
 */
void invar_recorder_watch_rollout(invar_recorder *recorder, invar_rollout *rollout, bool watch);

/*
 * Call instead of invar_recorder_end after a step failed with `status`. If statistics are kept,
 * adds the first tensor that is not finite to the error message and writes an event. Returns
 * `status`.
 */
invar_status invar_recorder_fail(invar_recorder *recorder, int64_t step,
                                 invar_status status) INVAR_MUST_USE;

#endif
