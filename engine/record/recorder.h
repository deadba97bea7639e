/*
 * recorder.h - what a run leaves of its steps: points and their digests, an entry of the ledger.
 *
 *     invar_recorder_begin(recorder, &step, "runs/a");
 *     invar_recorder_watch(recorder, trainer, "");    learning shows its activations
 *     ...                                             the learners learn
 *     invar_recorder_end(recorder);                   one transaction of the ledger
 *
 * All that is written for people or for later (ledger, trace, dump, lines on the console) goes
 * through here. Of several ranks each has a recorder, and one of these writes: at the end of a step
 * they compare what they would write.
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

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a step ---------------------------------------------------------------------------------- */

enum { INVAR_STEP_REPORT_LEARNERS = 2 }; /* an actor and a critic */
enum { INVAR_TOKEN_POINTS = 8 };         /* points of a number a token, or a sample */

/* A learner in a step. */
typedef struct invar_step_report_learner {
    invar_learner *learner;
    invar_loss *loss; /* whose metrics are recorded; NULL: none */
} invar_step_report_learner;

/* What a step has to tell. All of it is borrowed; zeroed, there is nothing. */
/* Named numbers that a hook has measured. */
typedef struct invar_hook_metrics {
    const char *hook;
    invar_reward_parts named;
} invar_hook_metrics;

typedef struct invar_step_report {
    int64_t number;                 /* of the run */
    const invar_rl_sample *samples; /* (flat->samples) of the whole rollout */
    const invar_token_arrays *flat; /* their numbers */
    int64_t first, count;           /* which of them are this step's */
    const int64_t *start;           /* (count + 1) invar_token_arrays_starts of those */
    int64_t weights;                /* version at the beginning of the rollout */
    bool own_weights;               /* the weights that learn have sampled the rollout, */
    bool other_format;              /* but rounded to another format: log-probabilities differ; */
    bool on_policy;                 /* as they are, and still are the same */
    bool compared;                  /* there is a gap: two forwards gave the log-probabilities */
    invar_logp_diff gap;            /* rollout against training, or against scoring */
    int64_t routes, routes_differ;  /* choices of experts made again */
    int64_t filtered_groups;        /* of the rollout, rejected by a filter; -1 if unknown */
    int64_t steps_per_rollout;      /* optimizer steps, each of which makes a version of weights */
    bool recorded_schedule;         /* a recorded schedule: the clock has chosen the groups */
    bool supervised;                /* answers are learned: nothing was sampled or rewarded */
    bool unrewarded;                /* nobody gives rewards: those of the samples are no facts */
    bool keeps_surplus;             /* groups beyond the batch wait for the next one: */
    int64_t reused_groups;          /* so many of this batch had, */
    int64_t surplus_groups;         /* and so many wait now */
    int64_t passes;                 /* pass@k of the rollout up to this k; 0: none */
    uint32_t seed;                  /* of the rollout */
    invar_step_report_learner learners[INVAR_STEP_REPORT_LEARNERS];
    int n_learners; /* 0: nothing was learned */
    invar_audit *audit;
    const invar_ledger_plugin_reply *replies; /* of plug-ins */
    size_t n_replies;
    bool has_loss_factor; /* a hook has given a factor of the policy's loss */
    float factor;
    const invar_hook_metrics *measures; /* (n_measures) of hooks */
    size_t n_measures;
} invar_step_report;

/* ---- the recorder ---------------------------------------------------------------------------- */

typedef struct invar_recorder_options {
    invar_probe_level level;
    bool stats; /* of every point that is recorded: what is not finite, how large the rest is */
    /* Points of learning whose tensors are written, as in invar_dump_new, and where; NULL or "":
       none, and below the run's folder */
    const char *dump, *dump_dir;
    invar_pool *pool;
    const invar_device *dev;
    const invar_device *sampler;                  /* of rollouts, beside `dev`; NULL: that one */
    const invar_layout *layout;                   /* whose ranks record the same; NULL: one rank */
    bool replay;                                  /* differing steps are recorded, not refused */
    int64_t keep;                                 /* samples of a step, with their text */
    const invar_tokenizer *tokenizer;             /* for that; NULL: none are kept */
    void (*say)(void *payload, const char *line); /* a line for people; may be NULL */
    void *payload;
} invar_recorder_options;

/*
 * What a stage of a pipeline shows of its layers while it learns. Stages are not in step: rank 0
 * makes points of what all have shown when the last has.
 */
typedef struct invar_recorder_stage {
    invar_probe *probe; /* owned, of this rank's layers alone; NULL: there are no stages */
    invar_dump *dump;   /* owned; NULL: none */
    invar_point_list listing;
    invar_rank_buffer tasks; /* what each task has shown, packed */
    int64_t n_tasks;
} invar_recorder_stage;

/*
 * Returns INVAR_E_INVALID if a name of the comma-separated list `points` can belong to no point of
 * a step. `layers` is the number of layers of the model, 0 if it is unknown.
 */
invar_status invar_recorder_check_dump(const char *points, int64_t layers) INVAR_MUST_USE;

/* Zeroed, it is closed. */
typedef struct invar_recorder {
    invar_recorder_options options;
    invar_ledger *ledger; /* owned, once there is one; NULL: another rank writes */
    char uuid[INVAR_LEDGER_UUID_SIZE];
    int64_t run;           /* its number in the ledger */
    int64_t recorded;      /* the last step that the ledger had when it was opened; -1: none */
    invar_trace *trace;    /* owned; NULL: no time is taken */
    invar_throughput pace; /* zeroed: nobody measures it */
    invar_probe *probe;
    invar_recorder_stage stage;
    invar_rollout_points *sampled; /* points of the rollout that the steps are of */
    invar_point_namer view;        /* how activations are named */
    const char *loss_inputs[INVAR_TOKEN_POINTS + 1]; /* what a backward begins with */
    invar_dump *dump;                                /* of the current step, owned; NULL: none */
    const invar_step_report *step;                   /* the current one; NULL between steps */
    int64_t points;                                  /* of the last entry */
    uint64_t kept_bytes;                             /* of samples, in all steps of the run */
    bool ranks_diverged; /* ranks made different entries, and all of them know */
} invar_recorder;

invar_status invar_recorder_open(invar_recorder *out,
                                 const invar_recorder_options *options) INVAR_MUST_USE;
void invar_recorder_close(invar_recorder *recorder);

/* A line, where somebody listens. */
void invar_recorder_print(const invar_recorder *recorder, const char *fmt, ...) INVAR_PRINTF(2, 3);

/* Points of all that is in stage.listing, in its order; only engine/record calls it, on rank 0. */
invar_status invar_recorder_define(invar_recorder *recorder) INVAR_MUST_USE;

/* At once, where it writes. */
invar_status invar_recorder_event(invar_recorder *recorder, int64_t step, const char *level,
                                  const char *kind, const char *message) INVAR_MUST_USE;

/* What ranks that only sample got before a step: weights as they are after `version` updates. */
typedef struct invar_recorder_sync {
    int64_t version;
    uint64_t bytes;
    double seconds;
    invar_digest hash;
} invar_recorder_sync;

/* An event of kind weight-sync, where it writes. */
invar_status invar_recorder_synced(invar_recorder *recorder, int64_t step,
                                   const invar_recorder_sync *sync) INVAR_MUST_USE;

/* The last step and the chain there, where it writes; else both stay as they are. */
invar_status invar_recorder_chain(int64_t *step_out, invar_digest *chain_out,
                                  const invar_recorder *recorder) INVAR_MUST_USE;

/* A new step, which stays where it is until its end, of the run in `folder`. */
invar_status invar_recorder_begin(invar_recorder *recorder, const invar_step_report *step,
                                  const char *folder) INVAR_MUST_USE;

/*
 * Where points finer than the chain are wanted, the trainer shows its activations from now on,
 * named `prefix` and their own name; NULL: it stops.
 */
void invar_recorder_watch(invar_recorder *recorder, invar_trainer *trainer, const char *prefix);

/*
 * Digests, metrics and samples of the step into the ledger. The learners are settled: their
 * gradients are zero again, while the ledger is written. INVAR_E_MISMATCH names a rank that has
 * others than most: the ledger has the step with the digests of all ranks, and an event.
 */
invar_status invar_recorder_end(invar_recorder *recorder) INVAR_MUST_USE;

/*
 * Where points finer than the chain or statistics are wanted, a new rollout shows its activations
 * from now on, for the steps that follow; `watch` false: it stops. `rollout` may be NULL.
 */
void invar_recorder_watch_rollout(invar_recorder *recorder, invar_rollout *rollout, bool watch);

/*
 * Instead of the end of `step`, after the failure `status`, which it returns: where statistics are
 * kept, the message, and an event, name the first tensor that is not finite.
 */
invar_status invar_recorder_fail(invar_recorder *recorder, int64_t step,
                                 invar_status status) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
