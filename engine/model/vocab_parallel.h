/*
 * vocab_parallel.h - where ranks divide the vocabulary: what of it is whose, as arrays that ops
 * read.
 *
 * A rank has the rows of its ids, in the embedding and in the head. It looks up all rows, and of
 * what the ranks have found those rows are picked whose ids they have. Logits are made by chunks of
 * 256 ids, none of which is cut. Log-probabilities need some numbers of each chunk. Where all
 * logits are wanted, each rank's lie in a part of equal size, and are put together chunk by chunk.
 * With one rank there are no arrays.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_VOCAB_PARALLEL_H
#define INVAR_ENGINE_MODEL_VOCAB_PARALLEL_H

#include "engine/model/partition.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_VOCAB_PARALLEL_CHUNK INVAR_LOGPROB_CHUNK

/* Zeroed; release. Arrays are valid until they are made again. */
typedef struct invar_vocab_parallel {
    int32_t *own_ids;     /* (T) the id's place in this rank's rows; 0 where another rank has it */
    int32_t *own_d_ids;   /* (T) the same; one of the spare rows where another rank has it */
    int32_t *picked;      /* (T) which of the ranks' rows is the id's: rank * T + row; where ranks
                             divide the stream, of this rank's rows */
    int32_t *own_targets; /* (R) the target's place; behind the rows where another rank has it */
    int32_t *chunks;      /* (R * chunks) which chunk of the gathered parts is the logits' next */
    void *memory[2];
    size_t bytes[2];
} invar_vocab_parallel;

void invar_vocab_parallel_release(invar_vocab_parallel *vocab);

/* Does the rank have only some of the ids of the parameter? */
bool invar_vocab_parallel_divided(const invar_param *param);

/* The arrays of rows, of which this rank wants some. */
invar_status invar_vocab_parallel_rows(invar_vocab_parallel *vocab, const invar_param *embedding,
                                       const invar_model_partition *part, const int32_t *ids,
                                       int64_t count,
                                       const invar_index_range *wanted) INVAR_MUST_USE;

/* Chunks of the vocabulary, and of a rank's part of the logits: room for its own and one more. */
int64_t invar_vocab_parallel_chunks(const invar_param *head);
int64_t invar_vocab_parallel_part_chunks(const invar_param *head,
                                         const invar_model_partition *part);

/* The arrays of the head: `count` targets, and places of all logits of `rows` rows. */
invar_status invar_vocab_parallel_head(invar_vocab_parallel *vocab, const invar_param *head,
                                       const invar_model_partition *part, const int32_t *targets,
                                       int64_t count, int64_t rows) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
