/*
 * admission.h - the decision whether a run can be carried out, before it starts.
 *
 * `train`, `train --dry-run` and `plan` ask the same functions: invar_admission_check, as soon as
 * they know something (the recipe, then the number of ranks, then what config.json and the data
 * say), and invar_admission_check_prompts, about the data. `help combinations` asks the first one
 * about pairs of keys.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RUN_ADMISSION_H
#define INVAR_ENGINE_RUN_ADMISSION_H

#include "base/recipe/recipe.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct invar_run_context;
struct invar_train_settings;
struct invar_disk;

/* What is known of a run; rules about a fact that is not known yet are skipped. */
typedef struct invar_admission {
    const invar_recipe *recipe;        /* borrowed */
    int ranks;                         /* number of ranks; 0 if unknown */
    const invar_model_spec *actor;     /* model that is trained, borrowed; NULL if unknown */
    const invar_model_spec *reference; /* if its shape is not the actor's, borrowed; else NULL */
    const invar_model_spec *teacher;   /* if its shape is not the actor's, borrowed; else NULL */
    const invar_model_spec *critic;    /* if its shape is not the actor's, borrowed; else NULL */
    bool data_known;                   /* prompt-data was read, or the recipe has none */
    int64_t prompts;                   /* number of prompts in prompt-data, if `data_known` */
    const struct invar_disk *disk;     /* for its checkpoints, borrowed; NULL if unknown */
    bool replay;                       /* recorded steps are executed again, by one rank */
} invar_admission;

/* Sets the models of a session, which must outlive the facts. */
void invar_admission_take_models(invar_admission *facts, const struct invar_run_context *session);

/*
 * Returns INVAR_E_INVALID with the key to change if the run cannot be carried out. The rules of a
 * recipe alone are those of invar_config_check. Returns INVAR_E_UNSUPPORTED if the model has no
 * extents for its dtype, and INVAR_E_IO if the checkpoints are sure not to fit on their disk.
 */
invar_status invar_admission_check(const invar_admission *facts) INVAR_MUST_USE;

/* What becomes of the prompts that rules judge. */
typedef struct invar_admission_prompts {
    const struct invar_run_context
        *session; /* with its data; without a tokenizer nothing is asked */
    const struct invar_train_settings *settings; /* by the number of its prompts */
    bool forked; /* the run goes on, or may go on, where another one was in the data */
    void (*say)(void *payload, const char *line);
    void *payload;
} invar_admission_prompts;

/*
 * Returns INVAR_E_INVALID if a prompt of training or evaluation that the run is certain to read has
 * metadata with which its rule fails. A data set with one that the run may read costs a line.
 */
invar_status invar_admission_check_prompts(const invar_admission_prompts *prompts) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
