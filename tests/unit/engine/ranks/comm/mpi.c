/*
 * mpi.c - tests of ranks that are processes, under a real mpirun.
 *
 * The test starts mpirun with its own program: what one rank of it does is given by a word. Bytes
 * must be those that threads get.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/engine/ranks/comm/exchange.h"

#define PLUGINS INVAR_TEST_WORK "/plugin/"
#define MODULE INVAR_TEST_WORK "/../invar-mpi.so"

static const char *program;

/* ---- one rank -------------------------------------------------------------------------------- */

static invar_status barrier(invar_comm *comm, const char *phase, double seconds)
{
    return invar_comm_run(
        comm,
        &(invar_comm_transfer){.op = INVAR_COMM_BARRIER, .phase = phase, .timeout_s = seconds});
}

static invar_status gather(invar_comm *comm, const char *phase, size_t each)
{
    static char in[1 << 20], out[MAX_RANKS << 20];
    size_t bytes[MAX_RANKS];

    for (int i = 0; i < MAX_RANKS; i++)
        bytes[i] = each;
    return invar_comm_run(comm, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                       .phase = phase,
                                                       .timeout_s = SECONDS,
                                                       .in = in,
                                                       .out = out,
                                                       .out_bytes = bytes});
}

/* More bytes than an int counts, from rank 0 to rank 1. */
static invar_status send_large(invar_comm *comm)
{
    size_t bytes = ((size_t)1 << 31) + 12345;
    bool gives = invar_comm_rank(comm) == 0;
    char *memory = malloc(bytes);
    invar_comm_transfer move = {.op = INVAR_COMM_SENDRECV,
                                .phase = "large",
                                .timeout_s = SECONDS,
                                .in = memory,
                                .out = memory,
                                .dst_rank = gives ? 1 : INVAR_COMM_NONE,
                                .src_rank = gives ? INVAR_COMM_NONE : 0,
                                .to_bytes = bytes,
                                .from_bytes = bytes};
    invar_status status;

    if (!memory)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the test");
    if (gives)
        write_piece(memory, bytes, 1);
    status = invar_comm_run(comm, &move);
    if (status == INVAR_OK && !is_piece(memory, bytes, 1))
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong bytes");
    free(memory);
    return status;
}

/* Ranks 2 and 3 halt, the others are in the middle of a call; then all exchange bytes. */
static invar_status halt(invar_comm *comm)
{
    uint64_t digest = 0;

    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); // until all have started
    if (invar_comm_rank(comm) >= 2)
        invar_comm_abort_recoverable(comm, "/run/ledger.db: no space left");
    if (gather(comm, "weights", 1 << 20) == INVAR_OK || !invar_comm_recover(comm))
        return INVAR_FAIL(INVAR_E_STATE, 0, "not halted, or not revived");
    INVAR_TRY(exchange_run(&digest, comm, 0));
    return INVAR_FAIL(INVAR_E_IO, 0, "revived with digest %016llx", (unsigned long long)digest);
}

/* Each waits for the next; the last one hangs. Rank 0 is the first whose time is over. */
static invar_status wait_in_row(invar_comm *comm)
{
    int rank = invar_comm_rank(comm), hangs = invar_comm_size(comm) - 1;
    char byte;

    if (rank == hangs)
        (void)raise(SIGSTOP);
    nanosleep(&(struct timespec){.tv_nsec = 150000000 * rank}, NULL);
    return invar_comm_run(comm, &(invar_comm_transfer){.op = INVAR_COMM_SENDRECV,
                                                       .phase = "row",
                                                       .timeout_s = 1.0,
                                                       .out = &byte,
                                                       .dst_rank = INVAR_COMM_NONE,
                                                       .src_rank = rank + 1,
                                                       .from_bytes = 1});
}

/* Rank 2 works for longer than the others wait without a beat; `hangs`: it never ends. */
static invar_status work_long(invar_comm *comm, bool hangs)
{
    for (int i = 0; i < 20 && invar_comm_rank(comm) == 2; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 75000000}, NULL);
        invar_comm_heartbeat(comm, 0.5);
    }
    if (hangs && invar_comm_rank(comm) == 2)
        (void)raise(SIGSTOP);
    return barrier(comm, "samples", 0.5);
}

/* Rank 2 does what the word says; the others only go on. */
static invar_status rank_part(invar_comm *comm, const char *word)
{
    bool odd = invar_comm_rank(comm) == 2;

    if (!strcmp(word, "large"))
        return send_large(comm);
    if (!strcmp(word, "halts"))
        return halt(comm);
    if (!strcmp(word, "waits"))
        return wait_in_row(comm);
    if (!strcmp(word, "works") || !strcmp(word, "tires"))
        return work_long(comm, word[0] == 't');
    if (odd && !strcmp(word, "leaves"))
        return INVAR_OK;
    if (odd && !strcmp(word, "other-op"))
        return barrier(comm, "gradients", SECONDS);
    if (odd && !strcmp(word, "other-size"))
        return gather(comm, "weights", 1000000); // more than the others have room for
    if (odd && !strcmp(word, "aborts"))
        invar_comm_abort(comm, "/run/ledger.db: no space left");
    if (odd && (!strcmp(word, "hangs") || !strcmp(word, "dies")))
        (void)raise(word[0] == 'h' ? SIGSTOP : SIGKILL);
    if (!strcmp(word, "hangs"))
        return barrier(comm, "rollout", 0.5);
    return gather(comm, "weights", 16);
}

/* As a program does it: one rank speaks, and ends before the others. */
static int process_main(const char *word, uint64_t seed, size_t piece)
{
    invar_comm_mpi_options options = {.seconds = SECONDS, .module = MODULE, .piece = piece};
    uint64_t digest = 0;
    invar_comm *comm;
    invar_status status = invar_comm_mpi(&comm, &options);
    bool speaks = true, exchanges = !strcmp(word, "exchange");
    char line[INVAR_ERROR_MESSAGE_SIZE + 16];

    if (status == INVAR_OK) {
        status = exchanges ? exchange_run(&digest, comm, seed) : rank_part(comm, word);
        speaks = invar_comm_reports_error(comm);
        if (status == INVAR_OK && exchanges && speaks)
            printf("digest %016llx host %d\n", (unsigned long long)digest,
                   invar_comm_host(comm, invar_comm_size(comm) - 1)[0] != '\0');
    }
    (void)snprintf(line, sizeof line, "invar: %s\n", invar_error_last()->message);
    if (!speaks)
        invar_comm_free(comm);
    if (status != INVAR_OK)
        (void)!write(STDERR_FILENO, line, strlen(line));
    if (speaks)
        invar_comm_free(comm);
    return status == INVAR_OK ? 0 : 2;
}

/* ---- all of them ----------------------------------------------------------------------------- */

typedef struct job {
    int code; /* exit code of mpirun */
    double seconds;
    char output[65536];
} job;

static void mpirun(job *out, int ranks, const char *word, int seed, int piece)
{
    struct timespec from, to;
    char command[4096];
    size_t bytes;
    FILE *pipe;
    int status;

    (void)snprintf(command, sizeof command,
                   "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 1 90 "
                   "mpirun --oversubscribe -n %d %s %s %d %d 2>&1",
                   ranks, program, word, seed, piece);
    clock_gettime(CLOCK_MONOTONIC, &from);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    bytes = fread(out->output, 1, sizeof out->output - 1, pipe);
    out->output[bytes] = '\0';
    status = pclose(pipe);
    clock_gettime(CLOCK_MONOTONIC, &to);
    out->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    out->seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}

/* Sanitizers find leaks in every MPI. */
static bool mpi_is_here(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return access(MODULE, R_OK) == 0;
#endif
}

static void test_comm_mpi__bytes_are_those_of_threads(void **state)
{
    static const int sizes[] = {1, 2, 4, 5};
    job ran;
    char line[64];

    (void)state;
    if (!mpi_is_here())
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int seed = 1; seed <= (int)invar_test_count(1, 10); seed++) {
            // with messages of any length cut into many
            mpirun(&ran, sizes[i], "exchange", seed, sizes[i] == 4 ? 1000 : 0);
            (void)snprintf(line, sizeof line, "digest %016llx host 1\n",
                           (unsigned long long)exchange_threads(sizes[i], 0, (uint64_t)seed));
            if (ran.code != 0 || !strstr(ran.output, line))
                fail_msg("%d ranks: exit code %d, no \"%s\" in: %s", sizes[i], ran.code, line,
                         ran.output);
        }
}

static void test_comm_mpi__sends_more_than_2_gib(void **state)
{
    job ran;

    (void)state;
    if (!mpi_is_here() || !invar_test_full())
        skip();
    mpirun(&ran, 2, "large", 0, 0);
    if (ran.code != 0)
        fail_msg("exit code %d: %s", ran.code, ran.output);
}

/* One line, on time, and the exit code of trouble. */
static void ends(const char *word, const char *text, double seconds)
{
    job ran;
    const char *line;

    mpirun(&ran, 4, word, 0, 0);
    line = strstr(ran.output, "invar: ");
    if (!line || !strstr(line, text) || strstr(line + 1, "invar: ") || ran.code != 2 ||
        ran.seconds > seconds)
        fail_msg("%s: after %g s exit code %d, expected one line with \"%s\" in: %s", word,
                 ran.seconds, ran.code, text, ran.output);
}

static void test_comm_mpi__ranks_fail_together(void **state)
{
    (void)state;
    if (!mpi_is_here())
        skip();
    ends("other-op", " is out of step with rank ", 10);
    ends("other-size", " it calls allgatherv in phase \"weights\" and sends ", 10);
    ends("leaves", " has left the run in phase \"weights\"", 10);
    ends("aborts", "cannot go on: /run/ledger.db: no space left", 10);
    ends("hangs", " did not come to barrier in phase \"rollout\"", 12);
    ends("waits", " did not come to sendrecv in phase \"row\": rank 2 has waited", 12);
}

static void test_comm_mpi__who_is_slow_and_beats_is_awaited(void **state)
{
    job ran;

    (void)state;
    if (!mpi_is_here())
        skip();
    mpirun(&ran, 4, "works", 0, 0);
    if (ran.code != 0)
        fail_msg("exit code %d: %s", ran.code, ran.output);
    ends("tires", "invar: rank 2 on ", 12);
}

static void test_comm_mpi__a_halted_world_is_revived(void **state)
{
    char text[64];

    (void)state;
    if (!mpi_is_here())
        skip();
    (void)snprintf(text, sizeof text, "revived with digest %016llx",
                   (unsigned long long)exchange_threads(4, 0, 0));
    for (int i = 0; i < 3; i++)
        ends("halts", text, 10);
}

static void test_comm_mpi__a_killed_rank_ends_all(void **state)
{
    job ran;

    (void)state;
    if (!mpi_is_here())
        skip();
    mpirun(&ran, 4, "dies", 0, 0);
    // the launcher's own line
    if (ran.code == 0 || ran.seconds > 20 || !strstr(ran.output, "process rank 2 "))
        fail_msg("after %g s exit code %d: %s", ran.seconds, ran.code, ran.output);
}

static void test_comm_mpi__says_that_the_module_is_missing(void **state)
{
    invar_comm_mpi_options options = {.module = "/nowhere/invar-mpi.so"};
    invar_comm *comm;

    (void)state;
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_UNSUPPORTED,
                 "the module /nowhere/invar-mpi.so does not exist");
    assert_null(comm);
    options.module = NULL; // beside this program is none
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_UNSUPPORTED,
                 "invar-mpi.so is not beside the program; ranks over MPI need it: ");
}

static void test_comm_mpi__names_what_mpi_refuses(void **state)
{
    invar_comm_mpi_options options = {.module = PLUGINS "old_mpi.so"};
    invar_comm *comm;

    (void)state;
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_UNSUPPORTED,
                 "old_mpi.so has version 99 of the interface, this program 1: build both together");
    options.module = PLUGINS "not_a_plugin.so";
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_UNSUPPORTED, "invar_mpi_v1");
    options.module = PLUGINS "fake_mpi.so";
    setenv("INVAR_TEST_MPI", "open", 1);
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_MPI,
                 "MPI cannot be started: code 5 of the fake");
    setenv("INVAR_TEST_MPI", "send", 1);
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_IO,
                 "rank 1 on an unknown host cannot be reached from rank 0: code 7 of the fake");
    assert_null(comm);
    unsetenv("INVAR_TEST_MPI");
    assert_ok(invar_comm_mpi(&comm, &options));
    assert_int_equal(invar_comm_size(comm), 1);
    invar_comm_free(comm);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_mpi__bytes_are_those_of_threads),
        cmocka_unit_test(test_comm_mpi__sends_more_than_2_gib),
        cmocka_unit_test(test_comm_mpi__ranks_fail_together),
        cmocka_unit_test(test_comm_mpi__who_is_slow_and_beats_is_awaited),
        cmocka_unit_test(test_comm_mpi__a_halted_world_is_revived),
        cmocka_unit_test(test_comm_mpi__a_killed_rank_ends_all),
        cmocka_unit_test(test_comm_mpi__says_that_the_module_is_missing),
        cmocka_unit_test(test_comm_mpi__names_what_mpi_refuses),
    };

    program = argv[0];
    if (argc == 4)
        return process_main(argv[1], (uint64_t)atoi(argv[2]), (size_t)atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
