/*
 * mpi.c - tests of the MPI transport: ranks that are processes, under a real mpirun.
 *
 * The test starts mpirun with its own executable; an argument names the scenario that the ranks
 * execute. Random exchanges must give the digest that ranks in threads give. In the failure
 * scenarios, all ranks must end in time with one message. Tests of the module itself use fakes
 * (tests/plugin).
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

static invar_status gather(invar_comm *comm, const char *phase, size_t rank_bytes)
{
    static char in[1 << 20], out[MAX_RANKS << 20];
    size_t bytes[MAX_RANKS];

    for (int i = 0; i < MAX_RANKS; i++)
        bytes[i] = rank_bytes;
    return invar_comm_run(comm, &(invar_comm_transfer){.op = INVAR_COMM_ALLGATHERV,
                                                       .phase = phase,
                                                       .timeout_s = SECONDS,
                                                       .in = in,
                                                       .out = out,
                                                       .out_bytes = bytes});
}

/* Sends more bytes than an int can count from rank 0 to rank 1. */
static invar_status send_large(invar_comm *comm)
{
    size_t bytes = ((size_t)1 << 31) + 12345;
    bool is_sender = invar_comm_rank(comm) == 0;
    char *memory = malloc(bytes);
    invar_comm_transfer transfer = {.op = INVAR_COMM_SENDRECV,
                                    .phase = "large",
                                    .timeout_s = SECONDS,
                                    .in = memory,
                                    .out = memory,
                                    .dst_rank = is_sender ? 1 : INVAR_COMM_NONE,
                                    .src_rank = is_sender ? INVAR_COMM_NONE : 0,
                                    .to_bytes = bytes,
                                    .from_bytes = bytes};
    invar_status status;

    if (!memory)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the test");
    if (is_sender)
        write_pattern(memory, bytes, 1);
    status = invar_comm_run(comm, &transfer);
    if (status == INVAR_OK && !has_pattern(memory, bytes, 1))
        status = INVAR_FAIL(INVAR_E_CORRUPT, 0, "wrong bytes");
    free(memory);
    return status;
}

/*
 * Ranks 2 and 3 abort recoverably while the others are in a call; then all ranks recover and
 * exchange bytes. The result is always a failure, whose message has the digest.
 */
static invar_status halt_and_recover(invar_comm *comm)
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

/* Each rank waits for the next one, and the last one hangs. Rank 0 times out first. */
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

/* Rank 2 computes for longer than the timeout, with heartbeats; then it stops if `hangs` is set. */
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

/* Executes a scenario, in most of which only rank 2 behaves differently. */
static invar_status run_scenario(invar_comm *comm, const char *scenario)
{
    bool is_rank_2 = invar_comm_rank(comm) == 2;

    if (!strcmp(scenario, "large"))
        return send_large(comm);
    if (!strcmp(scenario, "halts"))
        return halt_and_recover(comm);
    if (!strcmp(scenario, "waits"))
        return wait_in_row(comm);
    if (!strcmp(scenario, "works") || !strcmp(scenario, "tires"))
        return work_long(comm, scenario[0] == 't');
    if (is_rank_2 && !strcmp(scenario, "leaves"))
        return INVAR_OK;
    if (is_rank_2 && !strcmp(scenario, "other-op"))
        return barrier(comm, "gradients", SECONDS);
    if (is_rank_2 && !strcmp(scenario, "other-size"))
        return gather(comm, "weights", 1000000); // more bytes than the others have memory for
    if (is_rank_2 && !strcmp(scenario, "aborts"))
        invar_comm_abort(comm, "/run/ledger.db: no space left");
    if (is_rank_2 && (!strcmp(scenario, "hangs") || !strcmp(scenario, "dies")))
        (void)raise(scenario[0] == 'h' ? SIGSTOP : SIGKILL);
    if (!strcmp(scenario, "hangs"))
        return barrier(comm, "rollout", 0.5);
    return gather(comm, "weights", 16);
}

/* Like cli/main.c: one rank prints the error; it closes its handle last, after its output. */
static int process_main(const char *scenario, uint64_t seed, size_t piece)
{
    invar_comm_mpi_options options = {.seconds = SECONDS, .module = MODULE, .piece = piece};
    uint64_t digest = 0;
    invar_comm *comm;
    invar_status status = invar_comm_mpi(&comm, &options);
    bool reports_error = true, exchanges = !strcmp(scenario, "exchange");
    char line[INVAR_ERROR_MESSAGE_SIZE + 16];

    if (status == INVAR_OK) {
        status = exchanges ? exchange_run(&digest, comm, seed) : run_scenario(comm, scenario);
        reports_error = invar_comm_reports_error(comm);
        if (status == INVAR_OK && exchanges && reports_error)
            printf("digest %016llx host %d\n", (unsigned long long)digest,
                   invar_comm_host(comm, invar_comm_size(comm) - 1)[0] != '\0');
    }
    (void)snprintf(line, sizeof line, "invar: %s\n", invar_error_last()->message);
    if (!reports_error)
        invar_comm_free(comm);
    if (status != INVAR_OK)
        (void)!write(STDERR_FILENO, line, strlen(line));
    if (reports_error)
        invar_comm_free(comm);
    return status == INVAR_OK ? 0 : 2;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

typedef struct mpirun_result {
    int code; /* exit code of mpirun */
    double seconds;
    char output[65536];
} mpirun_result;

static void run_mpirun(mpirun_result *out, int ranks, const char *scenario, int seed, int piece)
{
    struct timespec from, to;
    char command[4096];
    size_t bytes;
    FILE *pipe;
    int status;

    (void)snprintf(command, sizeof command,
                   "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 1 90 "
                   "mpirun --oversubscribe -n %d %s %s %d %d 2>&1",
                   ranks, program, scenario, seed, piece);
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

/* False under sanitizers, which find leaks in every MPI. */
static bool has_mpi(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#else
    return access(MODULE, R_OK) == 0;
#endif
}

static void test_comm_mpi__bytes_are_those_of_threads(void **state)
{
    static const int sizes[] = {4, 5, 1, 2}; // by default the first two
    mpirun_result result;
    char line[64];

    (void)state;
    if (!has_mpi())
        skip();
    for (int64_t i = 0; i < invar_test_count(2, sizeof sizes / sizeof *sizes); i++)
        for (int seed = 1; seed <= (int)invar_test_count(1, 10); seed++) {
            // worlds of 4 ranks send messages in pieces of 1000 bytes
            run_mpirun(&result, sizes[i], "exchange", seed, sizes[i] == 4 ? 1000 : 0);
            (void)snprintf(line, sizeof line, "digest %016llx host 1\n",
                           (unsigned long long)exchange_threads(sizes[i], 0, (uint64_t)seed));
            if (result.code != 0 || !strstr(result.output, line))
                fail_msg("%d ranks: exit code %d, no \"%s\" in: %s", sizes[i], result.code, line,
                         result.output);
        }
}

static void test_comm_mpi__sends_more_than_2_gib(void **state)
{
    mpirun_result result;

    (void)state;
    if (!has_mpi() || !invar_test_full())
        skip();
    run_mpirun(&result, 2, "large", 0, 0);
    if (result.code != 0)
        fail_msg("exit code %d: %s", result.code, result.output);
}

/* Checks that a scenario ends within `seconds` with exit code 2 and one line, which has `text`. */
static void check_failure(const char *scenario, const char *text, double seconds)
{
    mpirun_result result;
    const char *line;

    run_mpirun(&result, 4, scenario, 0, 0);
    line = strstr(result.output, "invar: ");
    if (!line || !strstr(line, text) || strstr(line + 1, "invar: ") || result.code != 2 ||
        result.seconds > seconds)
        fail_msg("%s: after %g s exit code %d, expected one line with \"%s\" in: %s", scenario,
                 result.seconds, result.code, text, result.output);
}

static void test_comm_mpi__ranks_fail_together(void **state)
{
    (void)state;
    if (!has_mpi())
        skip();
    check_failure("other-op", " is out of step with rank ", 10);
    check_failure("other-size", " it calls allgatherv in phase \"weights\" and sends ", 10);
    check_failure("leaves", " has left the run in phase \"weights\"", 10);
    check_failure("aborts", "cannot go on: /run/ledger.db: no space left", 10);
    if (invar_test_full()) // by default, a chain of waiting ranks has a hanging rank
        check_failure("hangs", " did not come to barrier in phase \"rollout\"", 12);
    check_failure("waits", " did not come to sendrecv in phase \"row\": rank 2 has waited", 12);
}

static void test_comm_mpi__who_is_slow_and_beats_is_awaited(void **state)
{
    mpirun_result result;

    (void)state;
    if (!has_mpi())
        skip();
    run_mpirun(&result, 4, "works", 0, 0);
    if (result.code != 0)
        fail_msg("exit code %d: %s", result.code, result.output);
    check_failure("tires", "invar: rank 2 on ", 12);
}

static void test_comm_mpi__a_halted_world_is_revived(void **state)
{
    char text[64];

    (void)state;
    if (!has_mpi())
        skip();
    (void)snprintf(text, sizeof text, "revived with digest %016llx",
                   (unsigned long long)exchange_threads(4, 0, 0));
    for (int64_t i = 0; i < invar_test_count(1, 3); i++)
        check_failure("halts", text, 10);
}

static void test_comm_mpi__a_killed_rank_ends_all(void **state)
{
    mpirun_result result;

    (void)state;
    if (!has_mpi())
        skip();
    run_mpirun(&result, 4, "dies", 0, 0);
    // mpirun prints this line
    if (result.code == 0 || result.seconds > 20 || !strstr(result.output, "process rank 2 "))
        fail_msg("after %g s exit code %d: %s", result.seconds, result.code, result.output);
}

static void test_comm_mpi__says_that_the_module_is_missing(void **state)
{
    invar_comm_mpi_options options = {.module = "/nowhere/invar-mpi.so"};
    invar_comm *comm;

    (void)state;
    assert_fails(invar_comm_mpi(&comm, &options), INVAR_E_UNSUPPORTED,
                 "the module /nowhere/invar-mpi.so does not exist");
    assert_null(comm);
    options.module = NULL; // searched next to this executable, where there is no module
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
