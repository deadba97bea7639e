/*
 * model_runner.h - jobs through the cache, pass by pass: what generation and scoring share.
 *
 * Only engine/sample/rollout includes this.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_SAMPLE_ROLLOUT_MODEL_RUNNER_H
#define INVAR_ENGINE_SAMPLE_ROLLOUT_MODEL_RUNNER_H

#include "engine/model/graph/cuda_graph_cache.h"
#include "engine/ranks/layout/pipeline.h"
#include "engine/sample/rollout/draft/proposer.h"
#include "engine/sample/rollout/rollout.h"
#include "engine/sample/rollout/rollout_hooks.h"
#include "engine/sample/rollout/scheduler.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_draft_model invar_draft_model;
typedef struct invar_running_batch invar_running_batch;

struct invar_rollout {
    const invar_model *model;
    const invar_tokenizer *tokenizer;
    invar_op_runner caller;
    invar_rollout_exec_options limits;
    invar_pass *passes[INVAR_LAYOUT_MAX_CHUNKS]; /* (n_passes) one for each chunk of layers */
    int n_passes;
    invar_pass *pass;                        /* the last one, which draws are from */
    invar_pipeline_channel pipeline_channel; /* between stages */
    invar_cuda_graph_cache *tape;            /* NULL: ops run one by one */
    invar_kv_cache *cache;                   /* of the last run, used again where it fits */
    invar_row_ownership show;
    bool audited;
    invar_draft_model *draft;     /* that guesses; NULL: none */
    invar_draft_proposer guesser; /* instead of the one that the limits name; `make` NULL: none */
    invar_running_batch *open;    /* between open and close; NULL: none */
    bool leaves;                  /* the run ends after this pass, wherever its samples are */
    invar_rollout_counters counters;
};

/* Where its memory does not suffice. */
#define INVAR_MODEL_RUNNER_ADVICE "lower kv-pages, rollout-concurrency or chunked-prefill-size"

typedef struct invar_model_runner {
    invar_rollout *rollout;
    invar_scheduler schedule;
    const invar_seq_slice *turns; /* (n_turns) of the last pass */
    int64_t n_turns;
    int64_t sequences;         /* of the last pass: its turns, then fillers, */
    int64_t each;              /* of so many rows */
    bool steady;               /* wanted by the caller: see invar_model_runner_pass */
    bool beside;               /* another feed has the jobs */
    invar_row_ownership *show; /* the caller's: is told whose rows they are; NULL: nobody looks */
    int64_t route;             /* numbers of one row's routing; 0: none */
    int64_t width;             /* of the widest page table */
    void *memory;              /* the host's: the arrays */
    int32_t *ids;              /* (rows) */
    int32_t *positions;        /* (rows) */
    int32_t *slots;            /* (rows) places in the cache */
    int64_t *start;            /* (sequences + 1) rows of each */
    int64_t *lengths;          /* (sequences) */
    int32_t *tables;           /* (sequences, as wide as the pass needs) */
    int32_t *routing;          /* (rows, route) */
    invar_packed_rows rows;    /* of the last pass */
} invar_model_runner;

/*
 * The limits with nothing left open, for `sequences` of at most `rows` rows; the cache is there
 * afterwards, and the counters begin anew.
 */
invar_status invar_model_runner_settle(invar_rollout_exec_options *out, invar_rollout *rollout,
                                       int64_t sequences, int64_t rows) INVAR_MUST_USE;

/* What all jobs that may come need. */
typedef struct invar_model_runner_limits {
    int64_t sequences; /* at a time, where the limits allow as many */
    int64_t rows;      /* of the longest */
    int64_t ahead;     /* rows of guesses behind one */
} invar_model_runner_limits;

/* Settled limits. The jobs are borrowed. Released also after a failure. */
invar_status invar_model_runner_init(invar_model_runner *feed, invar_rollout *rollout,
                                     const invar_rollout_exec_options *limits,
                                     const invar_model_runner_limits *room, invar_seq *jobs,
                                     int64_t n_jobs) INVAR_MUST_USE;
void invar_model_runner_release(invar_model_runner *feed);

/*
 * Rows of another feed's jobs through another model, with pages of the same numbers. The caller
 * sets `cache` and the turns: of known rows, and of one or two others.
 */
invar_status invar_model_runner_init_beside(invar_model_runner *feed, invar_rollout *rollout,
                                            const invar_model_runner *first,
                                            invar_kv_cache *cache) INVAR_MUST_USE;

/* The turns of the next pass, which may be cut; n_turns is 0 when all jobs are over. */
invar_status invar_model_runner_next(invar_model_runner *feed) INVAR_MUST_USE;

/*
 * Runs it. With `steady`, a pass of equally many rows a sequence, one or as many as rows ahead
 * make, gets fillers, so that few different sizes occur, and the rollout's tape listens to its
 * calls and those that follow, until `listened`. Fillers write to free pages.
 */
invar_status invar_model_runner_pass(invar_model_runner *feed) INVAR_MUST_USE;

/* After every steady pass and its draws, whether they failed or not. */
void invar_model_runner_end_capture(invar_model_runner *feed);

/*
 * ---- pipeline_pass.c: the pass of one rank, or of the stages of a pipeline
 * --------------------------
 */

/* The passes of the rollout. Closed also after a failure. */
invar_status invar_rollout_stages_open(invar_rollout *rollout, const invar_device *dev,
                                       const invar_pass_options *options) INVAR_MUST_USE;
void invar_rollout_stages_close(invar_rollout *rollout);

/* Of all layers that it has; NULL ends it. */
void invar_rollout_stages_probe(const invar_rollout *rollout, const invar_forward_hooks *probe);

/* Does this rank draw? */
bool invar_rollout_stages_draw(const invar_rollout *rollout);

/* Layers that this rank has of a model. */
int64_t invar_rollout_stages_layers(const invar_model *model);

/* Rows with a cache of these layers, through all stages. */
invar_status invar_rollout_stages_run(invar_rollout *rollout,
                                      const invar_packed_rows *rows) INVAR_MUST_USE;

/* What the routers of all stages chose in the last run, to where its rows say. */
invar_status invar_rollout_stages_routing(invar_rollout *rollout,
                                          const invar_packed_rows *rows) INVAR_MUST_USE;

/* `data` becomes what the stage that draws has there. */
invar_status invar_rollout_stages_share(const invar_rollout *rollout, const char *phase, void *data,
                                        size_t bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
