/*
 * admission.h - decides whether a run can be carried out, before it starts.
 *
 * `train`, `train --dry-run` and `plan` call the same functions: invar_admission_check as soon as
 * more is known (first the recipe, then the number of ranks, then config.json and the data), and
 * invar_admission_check_prompts for the data. `help combinations` calls the first one for pairs of
 * keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_ADMISSION_H
#define INVAR_ENGINE_RUN_ADMISSION_H

#include "engine/config/config.h"
#include "engine/model/model.h"

struct invar_run_context;
struct invar_train_settings;
struct invar_disk;

/* Known facts about a run. Rules about a fact that is not known yet are skipped. */
typedef struct invar_admission {
    const invar_config *config;        /* borrowed */
    int ranks;                         /* number of ranks; 0 if unknown */
    const invar_model_spec *actor;     /* model that is trained, borrowed; NULL if unknown */
    const invar_model_spec *reference; /* spec if it differs from the actor's, borrowed; else
                                          NULL */
    const invar_model_spec *teacher;   /* spec if it differs from the actor's, borrowed; else
                                          NULL */
    const invar_model_spec *critic;    /* spec if it differs from the actor's, borrowed; else
                                          NULL */
    bool data_known;                   /* prompt-data was read, or the recipe has none */
    int64_t prompts;                   /* number of prompts in prompt-data, if `data_known` */
    const struct invar_disk *disk;     /* disk space of the checkpoints, borrowed; NULL if
                                          unknown */
    bool replay;                       /* recorded steps are executed again, by one rank */
} invar_admission;

/*
 * Returns INVAR_E_INVALID with the key to change if the run cannot be carried out. The rules of a
 * recipe alone are those of invar_config_check. Returns INVAR_E_UNSUPPORTED if the model has no
 * extents for its dtype, and INVAR_E_IO if the checkpoints are sure not to fit on their disk.
 */
invar_status invar_admission_check(const invar_admission *admission) INVAR_MUST_USE;

/* Like invar_admission_check, with the models and the prompts of an open run context. */
invar_status invar_admission_check_context(const invar_admission *known,
                                           const struct invar_run_context *session) INVAR_MUST_USE;

/* Prompts whose rewards are computed by rules, and how often the run reads them. */
typedef struct invar_admission_prompts {
    /* run context with its data; without a tokenizer nothing is checked */
    const struct invar_run_context *session;
    const struct invar_train_settings *settings; /* settings, read with the number of prompts */
    bool forked; /* the run continues, or may continue, from a position of another run in the
                    data */
    void (*say)(void *payload, const char *line); /* prints a line for the user */
    void *payload;
} invar_admission_prompts;

/*
 * Returns INVAR_E_INVALID if a prompt of training or evaluation that the run is certain to read has
 * metadata with which its reward rule fails. If the run only may read such a prompt, prints a line.
 */
invar_status invar_admission_check_prompts(const invar_admission_prompts *prompts) INVAR_MUST_USE;

#endif
