/*
 * subject.h - one model of the oracle: its folder, its fixtures, and the engine's results on them.
 *
 * A missing tensor of the fixtures, and whatever the engine refuses, fails the test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_ORACLE_MODEL_SUBJECT_H
#define INVAR_TESTS_ORACLE_MODEL_SUBJECT_H

#include "engine/model/forward.h"
#include "tests/ops.h"
#include "tests/oracle/oracle.h"

typedef struct invar_subject {
    const invar_oracle *oracle;
    const char *name; /* of the case: its folder, and the prefix of its tensors */
    invar_device dev;
    invar_model *model;
    invar_row_offsets samples;
    int64_t rows;           /* of all samples */
    const int32_t *tokens;  /* (rows) */
    const int32_t *targets; /* (rows) the token after each, also after the last of a sample */
    int32_t *positions;     /* (rows) */
} invar_subject;

/* Reads FOLDER/NAME with the engine's own loader. */
void invar_subject_init(invar_subject *s, const invar_oracle *oracle, const char *folder,
                        const char *name, invar_format format, invar_numerics numerics);
void invar_subject_release(invar_subject *s);

/* True when the format can hold a model of these extents. */
bool invar_subject_fits(const char *folder, const char *name, invar_format format);

/* The data of a tensor of the case: `count` elements of this type; any number for -1. */
const void *invar_subject_data(const invar_subject *s, const char *name, invar_oracle_type type,
                               int64_t count);
double invar_subject_number(const invar_subject *s, const char *kind, const char *name);

/* All samples packed: log-probability and entropy of every row. */
void invar_subject_score(const invar_subject *s, float temperature, float *logp, float *entropy);

/* ---- training -------------------------------------------------------------------------------- */

#define INVAR_SUBJECT_FIRST 2 /* samples from here on are the training batch */

typedef struct invar_subject_loss {
    const char *kind; /* of the fixtures: "sample" or "token" */
    int64_t micro;    /* samples of one micro-batch; 0: all */
    bool recompute;
    bool no_entropy; /* a deliberate mistake: dL/dentropy is dropped */
} invar_subject_loss;

/* Gradients of the loss; the caller frees *grads. Returns the loss. */
double invar_subject_train(invar_subject *s, const invar_subject_loss *loss, invar_grads **grads);

/* ---- errors ---------------------------------------------------------------------------------- */

#define INVAR_SUBJECT_SKETCH 17 /* the norm of a vector, then 16 projections of it */

/*
 * The norm of (got - expected) relative to the norm of expected, estimated from the projections
 * that the fixtures have. `before` may be NULL; else got - before is meant.
 */
double invar_subject_sketch_error(const float *sketch, const float *got, const float *before,
                                  int64_t count);

/* The same, exactly, where the fixtures have the whole tensor. */
double invar_subject_whole_error(const float *expected, const float *got, int64_t count);

#endif
