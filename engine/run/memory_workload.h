/*
 * memory_workload.h - a recipe as engine/run/memory_plan asks about it, and how much memory there
 * is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_WORKLOAD_H
#define INVAR_ENGINE_RUN_MEMORY_WORKLOAD_H

#include "engine/run/context/run_context.h"
#include "engine/run/memory_plan/memory_plan.h"
#include "engine/run/train_settings.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the data say about lengths, in tokens; 0: the recipe's bound counts. */
typedef struct invar_data_lengths {
    int64_t prompt; /* of the longest prompt of training, */
    int64_t answer; /* its longest answer, */
    int64_t total;  /* and the most of both together: SFT */
    bool evaluates;
    int64_t eval;         /* of the longest prompt of evaluation, */
    int64_t eval_prompts; /* and how many the largest set has */
    int64_t per_prompt;   /* samples of a prompt of evaluation, at most */
    int64_t response;     /* tokens of a response there, at most */
    invar_sampling_params sampling;
} invar_data_lengths;

/* A data set of training or of evaluation; NULL: nothing is known. */
void invar_memory_planning_measure(invar_data_lengths *out, const invar_dataset *data, bool eval);

/* Of a session that has its spec and its device; both are borrowed. */
invar_memory_workload invar_memory_planning_ask(const invar_run_context *session,
                                                const invar_train_settings *settings,
                                                const invar_data_lengths *data);

/* Of a rank that only samples: it has the actor's weights and a KV cache. */
void invar_memory_planning_sample_alone(invar_memory_workload *ask);

/* Bytes of memory of this host, or of the control group that limits the process to less. */
size_t invar_memory_planning_host(void);

/* Free bytes of a device whose memory is far; else those of invar_memory_planning_host. */
size_t invar_memory_planning_available(const invar_device *dev);

/* The plan of a recipe; release. */
typedef struct invar_memory_planning {
    invar_run_context session; /* without models */
    invar_train_settings settings;
    invar_data_lengths data; /* what of them is there */
    size_t available;        /* bytes of the device */
    invar_layout layout;     /* whose other ranks are imagined; zeroed: one rank */
    const invar_rank_role_sizes
        *split_roles;       /* ranks that train and ranks that sample; NULL: all do both */
    int world;              /* so many ranks on both sides */
    invar_rank_roles sides; /* as the rank that is planned sees them */
    invar_memory_workload ask;
    invar_memory_plan budget;
    char unread[1200]; /* a line for people if a file of data does not exist; else "" */
} invar_memory_planning;

/*
 * Needs neither weights nor data nor a GPU: where prompts or the tokenizer are not there, the
 * recipe's bounds count. `memory` is what the device has; 0: what it has free.
 */
invar_status invar_memory_planning_run(invar_memory_planning *out, const invar_recipe *recipe,
                                       size_t memory) INVAR_MUST_USE;

/* The same without a budget, and then budgets of one rank of several, for any number of layouts. */
invar_status invar_memory_planning_open(invar_memory_planning *out, const invar_recipe *recipe,
                                        size_t memory) INVAR_MUST_USE;
invar_status invar_memory_planning_plan_rank(invar_memory_planning *view,
                                             const invar_layout_sizes *sizes, int ranks,
                                             int rank) INVAR_MUST_USE;

/* The budget of the rank of a stage that needs most; the layout is that of its first rank. */
invar_status invar_memory_planning_plan_stage(invar_memory_planning *view,
                                              const invar_layout_sizes *sizes, int ranks,
                                              int stage) INVAR_MUST_USE;

/* From now on ranks are some of `world`, of which the last only sample; NULL: none of them. */
void invar_memory_planning_take_sides(invar_memory_planning *view,
                                      const invar_rank_role_sizes *sizes, int world);

/* The same for a rank that only samples. */
invar_status invar_memory_planning_plan_sampler(invar_memory_planning *view) INVAR_MUST_USE;
void invar_memory_planning_release(invar_memory_planning *view);

#ifdef __cplusplus
}
#endif
#endif
