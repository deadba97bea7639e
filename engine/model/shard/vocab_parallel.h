/*
 * vocab_parallel.h - vocabulary parallelism: index arrays for embedding and head split by ids.
 *
 * A rank has the rows of its ids in embedding and head. For the embedding, it reads its shard for
 * all rows, and each row is picked from the rank that has its id. Logits are computed in vocabulary
 * chunks of 256 ids, which are never split between ranks. Log-probs need only partial sums per
 * chunk. If all logits are needed, each rank's lie in a part of equal size, and the chunks are
 * copied together. With a single rank there are no arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_SHARD_VOCAB_PARALLEL_H
#define INVAR_ENGINE_MODEL_SHARD_VOCAB_PARALLEL_H

#include "engine/model/partition.h"

#define INVAR_VOCAB_PARALLEL_CHUNK INVAR_LOGPROB_CHUNK

/*
 * Index arrays in host memory. Zero-initialize before use. Release with
 * invar_vocab_parallel_release. Arrays are valid until they are computed again.
 */
typedef struct invar_vocab_parallel {
    int32_t *own_ids;   /* (T) row of the id in this rank's shard; 0 if another rank has it */
    int32_t *own_d_ids; /* (T) row of the id in the gradient; a spare row if another rank has
                           it */
    /*
     * (wanted.count) index of each wanted row in the gathered lookups: owner * wanted.count + row,
     * counted from the first wanted row
     */
    int32_t *picked;
    int32_t *own_targets; /* (R) column of the target in the local logits; the one after them if
                             another rank has it */
    int32_t *chunks;      /* (R * chunks) index in the gathered parts of each chunk of the logits */
    void *memory[2];      /* blocks of the arrays of rows, and of those of the head */
    size_t bytes[2];
} invar_vocab_parallel;

void invar_vocab_parallel_release(invar_vocab_parallel *vocab);

/* Returns true if the rank has only some of the parameter's ids. */
bool invar_vocab_parallel_divided(const invar_param *param);

/*
 * Computes own_ids and own_d_ids for `count` rows, and picked for the range `wanted` of them: the
 * rows that this rank needs.
 */
invar_status invar_vocab_parallel_rows(invar_vocab_parallel *vocab, const invar_param *embedding,
                                       const invar_model_partition *part, const int32_t *ids,
                                       int64_t count,
                                       const invar_index_range *wanted) INVAR_MUST_USE;

/*
 * Vocabulary chunks of all ids, and of a rank's part of the logits: the largest number that any
 * rank has, plus one.
 */
int64_t invar_vocab_parallel_chunks(const invar_param *head);
int64_t invar_vocab_parallel_part_chunks(const invar_param *head,
                                         const invar_model_partition *part);

/*
 * Computes own_targets for `count` targets (may be NULL) and chunks for `rows` rows of logits.
 * Returns INVAR_E_UNSUPPORTED if an index exceeds 31 bits.
 */
invar_status invar_vocab_parallel_head(invar_vocab_parallel *vocab, const invar_param *head,
                                       const invar_model_partition *part, const int32_t *targets,
                                       int64_t count, int64_t rows) INVAR_MUST_USE;

#endif
