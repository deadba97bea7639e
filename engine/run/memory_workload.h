/*
 * memory_workload.h - describes a recipe to the memory planner, and measures the available memory.
 *
 * The functions up to invar_memory_planning_available serve a run that is being set up. struct
 * invar_memory_planning plans without a run, as `invar plan` does: it needs neither weights nor
 * data nor a GPU, and plans any rank of any layout.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_MEMORY_WORKLOAD_H
#define INVAR_ENGINE_RUN_MEMORY_WORKLOAD_H

#include "engine/config/config.h"
#include "engine/run/context/run_context.h"
#include "engine/run/memory_plan/memory_plan.h"
#include "engine/run/train_settings.h"

/* Returns the workload of a run context that has its spec and its device. Both are borrowed. */
invar_memory_workload invar_memory_planning_workload(const invar_run_context *session,
                                                     const invar_train_settings *settings,
                                                     const invar_data_lengths *data);

/* Reduces a workload to that of a rank that only samples: the actor's weights and a KV cache. */
void invar_memory_planning_sample_alone(invar_memory_workload *workload);

/* Returns the memory of this host in bytes, or the smaller limit of the process's control group. */
size_t invar_memory_planning_host(void);

/* Returns the free bytes of a device with its own memory; else invar_memory_planning_host. */
size_t invar_memory_planning_available(const invar_device *dev);

/* A recipe opened for planning. Release with invar_memory_planning_release. */
typedef struct invar_memory_planning {
    invar_run_context session; /* without models */
    invar_train_settings settings;
    invar_data_lengths data; /* lengths in the data files that exist */
    size_t available;        /* bytes of device memory to plan for */
    invar_layout layout;     /* layout with simulated other ranks; zeroed for one rank */
    const invar_rank_role_sizes
        *split_roles;       /* ranks that train and ranks that only sample; NULL if all do both */
    int world;              /* number of ranks of both roles */
    invar_rank_roles roles; /* roles as the planned rank sees them */
    invar_memory_workload workload;
    invar_memory_plan plan;
    char unread[1200]; /* line for the user if a data file does not exist; else "" */
} invar_memory_planning;

/*
 * Opens a recipe to be planned, on one rank by invar_memory_plan_make. If data or tokenizer do not
 * exist, the recipe's bounds are used. `memory` is the device memory in bytes; 0 for the free
 * memory of the device. invar_memory_planning_plan_rank then plans one rank of `ranks`, for any
 * number of layouts; set `split_roles` and `world` before, if some of the ranks only sample.
 */
invar_status invar_memory_planning_open(invar_memory_planning *out, const invar_config *config,
                                        size_t memory) INVAR_MUST_USE;
invar_status invar_memory_planning_plan_rank(invar_memory_planning *planning,
                                             const invar_layout_sizes *sizes, int ranks,
                                             int rank) INVAR_MUST_USE;

/*
 * Plans the rank of the pipeline stage that needs the most memory. The layout is that of the
 * stage's first rank afterwards.
 */
invar_status invar_memory_planning_plan_stage(invar_memory_planning *planning,
                                              const invar_layout_sizes *sizes, int ranks,
                                              int stage) INVAR_MUST_USE;

/* Like invar_memory_planning_plan_rank, for a rank that only samples. */
invar_status invar_memory_planning_plan_sampler(invar_memory_planning *planning) INVAR_MUST_USE;
void invar_memory_planning_release(invar_memory_planning *planning);

#endif
