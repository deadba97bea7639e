/*
 * trainer.c - example of a trainer that writes a ledger with libinvar_ledger, to be copied.
 *
 * It begins or resumes a run, defines points, appends a step with digests and metrics, and records
 * checkpoints in two phases, so that a killed run can continue from its last checkpoint.
 *
 *     cc -std=c11 trainer.c $(pkg-config --cflags --libs invar-ledger) -o trainer
 *     mkdir run && cd run && ../trainer 6     trains steps 0 to 5
 *     ../trainer 12                           continues from the checkpoint; repeats steps 4 and 5
 *     invar ledger verify ledger.db
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ledger/ledger.h"

enum { SIZE = 10000, EVERY = 4 /* steps per checkpoint */, POINTS = 2 };

/* The state that the next step depends on, which is the content of a checkpoint. */
typedef struct trainer {
    int64_t step; /* last step; -1 before step 0 */
    invar_digest
        chain; /* chain of the ledger at `step`, which ties checkpoint and ledger together */
    float weights[SIZE];
} trainer;

static trainer t = {.step = -1};
static float grad[SIZE];

static invar_status hash_tensor(invar_digest *out, const float *tensor)
{
    const invar_tree_shard shard = {tensor, 1, SIZE * sizeof *tensor, SIZE * sizeof *tensor};

    return invar_tree_hash(out, NULL, &(invar_tree_input){&shard, 1});
}

/* Defines the tensors whose digests are recorded at every step, and what they are computed from. */
static invar_status define_points(invar_ledger *ledger)
{
    static const int64_t shape[1] = {SIZE}, gradient[1] = {0};
    const invar_ledger_point points[POINTS] = {
        {"weights.grad", "backward", 0, "toy", "grad", 0, "f32", shape, 1, 1, false, NULL, 0},
        {"weights", "optimizer", 0, "sgd", "param", 0, "f32", shape, 1, 1, false, gradient, 1}};

    return invar_ledger_define(ledger, points, POINTS);
}

/* Computes one step and records it. When invar_ledger_append has returned, the step is recorded. */
static invar_status train_step(invar_ledger *ledger)
{
    invar_digest digests[POINTS];
    invar_ledger_step entry = {
        .step = t.step + 1, .weights_version = t.step + 1, .digests = digests};
    double loss = 0;

    for (int i = 0; i < SIZE; i++) {
        grad[i] = t.weights[i] - (float)((i * 7 + entry.step) % 16);
        loss += (double)grad[i] * grad[i] / SIZE;
    }
    INVAR_TRY(hash_tensor(&digests[0], grad));
    for (int i = 0; i < SIZE; i++)
        t.weights[i] -= 0.25f * grad[i];
    INVAR_TRY(hash_tensor(&digests[1], t.weights));

    const invar_ledger_metric metrics[] = {{"train/loss", loss}, {"train/lr", 0.25}};
    entry.metrics = metrics;
    entry.n_metrics = 2;
    invar_hash_bytes(&entry.batch, &entry.step, sizeof entry.step); // digest of the batch
    INVAR_TRY(invar_ledger_append(ledger, &entry));
    return invar_ledger_chain(&t.step, &t.chain, ledger);
}

/*
 * Writes a checkpoint: write and sync the file, announce it, rename it, complete it. In this order
 * no checkpoint contains a step that the ledger lacks.
 */
static invar_status save_checkpoint(invar_ledger *ledger)
{
    invar_ledger_checkpoint made = {t.step, "checkpoint", sizeof t, {{0}}, t.chain};
    int file = open("checkpoint.new", O_WRONLY | O_CREAT | O_TRUNC, 0666), folder;

    if (file < 0 || write(file, &t, sizeof t) != sizeof t || fsync(file) || close(file))
        return INVAR_FAIL(INVAR_E_IO, 0, "checkpoint.new: cannot be written");
    invar_hash_bytes(&made.hash, &t, sizeof t);
    INVAR_TRY(invar_ledger_checkpoint_intent(ledger, &made));
    folder = open(".", O_RDONLY);
    if (rename("checkpoint.new", "checkpoint") || fsync(folder) || close(folder))
        return INVAR_FAIL(INVAR_E_IO, 0, "checkpoint: cannot be made");
    return invar_ledger_checkpoint_complete(ledger, &made);
}

/*
 * Begins a new run, or a new segment of the run in the ledger, which continues after the checkpoint
 * or, if there is no checkpoint, starts over.
 */
static invar_status begin_or_resume(invar_ledger *ledger)
{
    static const invar_ledger_pair identity[] = {{"lr", "0.25"}, {"size", "10000"}};
    const invar_ledger_run run = {"toy", "train", identity, 2, NULL, 0, NULL, {0}};
    invar_ledger_summary known;
    FILE *file = fopen("checkpoint", "rb");

    if (file && (fread(&t, sizeof t, 1, file) != 1 || fclose(file)))
        return INVAR_FAIL(INVAR_E_IO, 0, "checkpoint: cannot be read");
    if (invar_ledger_find(&known, ledger, NULL) == INVAR_OK)
        return invar_ledger_resume(ledger, known.uuid, t.step, &t.chain, &run.circumstances);
    return invar_ledger_begin(ledger, &run);
}

static invar_status train_steps(invar_ledger *ledger, int64_t steps)
{
    INVAR_TRY(begin_or_resume(ledger));
    INVAR_TRY(define_points(ledger));
    while (t.step + 1 < steps) {
        INVAR_TRY(train_step(ledger));
        if ((t.step + 1) % EVERY == 0)
            INVAR_TRY(save_checkpoint(ledger));
    }
    return invar_ledger_finish(ledger, 0, "done");
}

int main(int argc, char **argv)
{
    const invar_ledger_options options = {.create = true, .writer = "the toy trainer"};
    const char *slash = strrchr(argv[0], '/');
    char *end = "", program[4096];
    long long steps = argc > 1 ? strtoll(argv[1], &end, 10) : 12;
    invar_ledger *ledger = NULL;
    invar_status status;

    if (argc > 2 || *end || steps < 1) {
        fprintf(stderr, "usage: %s [STEPS]: writes so many steps (12), 1 or more\n", argv[0]);
        return 2;
    }
    status = invar_ledger_open(&ledger, "ledger.db", &options);
    if (status == INVAR_OK)
        status = train_steps(ledger, steps);
    // in a build folder invar lies beside this program; if installed, it is found in PATH
    (void)snprintf(program, sizeof program, "%.*sinvar", slash ? (int)(slash + 1 - argv[0]) : 0,
                   argv[0]);
    if (status == INVAR_OK)
        fprintf(stdout, "wrote ledger.db; its last step is %lld\nnext: %s ledger ls .\n",
                (long long)t.step, access(program, X_OK) == 0 ? program : "invar");
    else
        fprintf(stderr, "trainer: %s\n", invar_error_last()->message);
    invar_ledger_close(ledger);
    return status != INVAR_OK;
}
