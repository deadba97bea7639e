/*
 * subject.h - one model of the oracle with its fixtures, and the engine's results on it.
 *
 * A missing tensor of the fixtures, and any error of the engine, fails the test.
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
    const char *name; /* name of the case: its folder, and the prefix of its tensors */
    invar_device dev;
    invar_model *model;
    invar_row_offsets samples;
    int64_t rows;           /* rows of all samples */
    const int32_t *tokens;  /* (rows) token of each row */
    const int32_t *targets; /* (rows) next token of each row, also after the last of a sample */
    int32_t *positions;     /* (rows) position in its sample */
} invar_subject;

/* Reads FOLDER/NAME with the engine's own loader. */
void invar_subject_init(invar_subject *s, const invar_oracle *oracle, const char *folder,
                        const char *name, invar_format format, invar_numerics numerics);
void invar_subject_release(invar_subject *s);

/* Returns true if the format can hold a model of this shape. */
bool invar_subject_fits(const char *folder, const char *name, invar_format format);

/* Returns the data of a tensor of the case: `count` elements of this type; -1 allows any number. */
const void *invar_subject_data(const invar_subject *s, const char *name, invar_oracle_type type,
                               int64_t count);
double invar_subject_number(const invar_subject *s, const char *kind, const char *name);

/* Scores all samples packed: writes the log-probability and entropy of every row. */
void invar_subject_score(const invar_subject *s, float temperature, float *logp, float *entropy);

/* ---- training -------------------------------------------------------------------------------- */

#define INVAR_SUBJECT_FIRST 2 /* samples from this index on are the training batch */

typedef struct invar_subject_loss {
    const char *kind; /* name of the loss in the fixtures: "sample" or "token" */
    int64_t micro;    /* samples per micro-batch; 0 for all in one */
    bool recompute;
    bool no_entropy; /* deliberate mistake for a control: dL/dentropy is dropped */
} invar_subject_loss;

/* Computes the gradients of the loss; the caller frees *grads. Returns the loss. */
double invar_subject_train(invar_subject *s, const invar_subject_loss *loss, invar_grads **grads);

/* ---- errors ---------------------------------------------------------------------------------- */

#define INVAR_SUBJECT_SKETCH                                                                       \
    17 /* size of a sketch: the norm of a vector, then 16 projections of
                                   it */

/*
 * Returns the norm of (got - expected) relative to the norm of expected, estimated from the
 * projections in the fixtures. If `before` is not NULL, (got - before) is compared instead of got.
 */
double invar_subject_sketch_error(const float *sketch, const float *got, const float *before,
                                  int64_t count);

/* Returns the exact relative error, for a tensor that is complete in the fixtures. */
double invar_subject_whole_error(const float *expected, const float *got, int64_t count);

#endif
