/*
 * launch.c - detects how the ranks of a run were started, and runs those of this process.
 *
 * Ranks are processes of an MPI launcher, or threads of this process. Rank 0 of a process with
 * threads is the calling thread, so a single rank needs no thread. After a failure, rank 0's error
 * is kept in preference to those of other threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/launch/launch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/config/config.h"

#include "base/invar_banned.h"

/* ---- detecting the launcher ------------------------------------------------------------------ */

static int64_t number_of(const char *variable)
{
    const char *text = getenv(variable);

    return text ? strtoll(text, NULL, 10) : 0;
}

invar_status invar_launch_processes(int64_t *out)
{
    *out = number_of("OMPI_COMM_WORLD_SIZE"); // Open MPI's mpirun
    if (*out == 0)
        *out = number_of("PMI_SIZE"); // MPICH's, and srun --mpi=pmi2
    if (*out == 0)
        // srun; set in its tasks only, not in a batch script
        *out = number_of("SLURM_STEP_NUM_TASKS");
    if (*out <= 1 || getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK"))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "srun has started %" PRId64
                      " tasks that do not know each other: give srun --mpi=pmix, or -n 1",
                      *out);
}

/* ---- opening and closing --------------------------------------------------------------------- */

double invar_launch_timeout(const invar_config *config)
{
    return 60.0 * (double)config->distributed_timeout_minutes;
}

invar_status invar_launch_open(invar_launch *out, double seconds, int64_t ranks)
{
    int64_t processes;
    invar_status status;

    *out = (invar_launch){.count = 1};
    INVAR_TRY(invar_launch_processes(&processes));
    if (processes > 1 && ranks > 1)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "--ranks: %" PRId64 " processes have been started already, each of them "
                          "is a rank; give no number of ranks, or start one process",
                          processes);
    if (processes <= 1 && ranks <= 1)
        return INVAR_OK;
    out->count = processes > 1 ? 1 : (int)ranks;
    INVAR_TRY(INVAR_ALLOC(out->comms, (size_t)out->count, "ranks"));
    status = processes > 1
                 ? invar_comm_mpi(out->comms, &(invar_comm_mpi_options){.seconds = seconds})
                 : invar_comm_threads(out->comms, out->count, 0);
    if (status != INVAR_OK) {
        invar_free(out->comms);
        *out = (invar_launch){.count = 1};
    }
    return status;
}

void invar_launch_close(invar_launch *launch)
{
    for (int r = 0; r < launch->count && launch->comms; r++)
        invar_comm_free(launch->comms[r]);
    invar_free(launch->comms);
    *launch = (invar_launch){.count = 1};
}

bool invar_launch_has_rank0(const invar_launch *launch)
{
    return !launch->comms || invar_comm_rank(launch->comms[0]) == 0;
}

invar_status invar_launch_end(invar_launch *launch, invar_status status)
{
    bool reports =
        launch->count > 1 || !launch->comms || invar_comm_reports_error(launch->comms[0]);
    invar_error failure;

    invar_error_take(&failure);
    if (status == INVAR_OK || !reports)
        invar_launch_close(launch);
    invar_error_put(&failure);
    return status;
}

/* ---- running the ranks ----------------------------------------------------------------------- */

/* One rank of this process, run by a thread. */
typedef struct thread_rank {
    invar_rank_main_fn work;
    void *payload;
    invar_comm *comm;
    int threads;
    pthread_t thread;
    bool started;
    invar_status status;
    invar_error error;
} thread_rank;

static void *run_rank(void *payload)
{
    thread_rank *rank = payload;

    rank->status = rank->work(rank->payload, rank->comm, rank->threads);
    invar_error_take(&rank->error);
    return NULL;
}

static void start_rank(thread_rank *rank)
{
    int code = pthread_create(&rank->thread, NULL, run_rank, rank);

    rank->started = code == 0;
    if (rank->started)
        return;
    rank->status = INVAR_FAIL(INVAR_E_IO, code, "the thread of rank %d cannot be started: %s",
                              invar_comm_rank(rank->comm), strerror(code));
    invar_comm_abort(rank->comm, invar_error_last()->message);
    invar_error_take(&rank->error);
}

/*
 * Runs rank 0 in the calling thread and the others in threads. Returns the first failure, in the
 * order of ranks.
 */
static invar_status run_threads(thread_rank *ranks, int count)
{
    int told = 0;

    for (int r = 1; r < count; r++)
        start_rank(&ranks[r]);
    run_rank(&ranks[0]);
    for (int r = 1; r < count; r++)
        if (ranks[r].started)
            (void)pthread_join(ranks[r].thread, NULL);
    while (told < count - 1 && ranks[told].status == INVAR_OK)
        told++;
    if (ranks[told].status != INVAR_OK)
        invar_error_put(&ranks[told].error);
    return ranks[told].status;
}

invar_status invar_launch_run(invar_launch *launch, invar_rank_main_fn work, void *payload)
{
    thread_rank *ranks = NULL;
    invar_status status;

    if (launch->count == 1)
        return work(payload, launch->comms ? launch->comms[0] : NULL, 1);
    INVAR_TRY(INVAR_ALLOC(ranks, (size_t)launch->count, "ranks of a run"));
    for (int r = 0; r < launch->count; r++)
        ranks[r] = (thread_rank){
            .work = work, .payload = payload, .comm = launch->comms[r], .threads = launch->count};
    status = run_threads(ranks, launch->count);
    invar_free(ranks);
    return status;
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct train_args {
    const invar_config *config;
    const invar_train_options *options;
    invar_train_summary *out;
    const invar_comm *first; /* first communicator of this process */
} train_args;

/* Runs one rank. Only rank 0 gets the callbacks that print for the user or ask the user. */
static invar_status train_rank(void *payload, invar_comm *comm, int threads)
{
    const train_args *t = payload;
    invar_train_options own = *t->options;
    invar_train_summary summary;

    own.comm = comm;
    own.threads_for = threads;
    if (comm && invar_comm_rank(comm) != 0) {
        own.progress = NULL;
        own.identified = NULL;
        own.say = NULL;
    }
    return invar_train(comm == t->first ? t->out : &summary, t->config, &own);
}

invar_status invar_launch_train(invar_train_summary *out, invar_launch *launch,
                                const invar_config *config, const invar_train_options *options)
{
    train_args t = {config, options, out, launch->comms ? launch->comms[0] : NULL};

    return invar_launch_run(launch, train_rank, &t);
}
