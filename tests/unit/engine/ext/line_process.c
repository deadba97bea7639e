/*
 * line_process.c - tests of plug-ins that are programs and speak JSON lines, most of them faulty.
 *
 * tests/plugin/program.py and hangs.sh misbehave in one way per mode. Every fault must become an
 * error that names the plug-in, within the timeout, and no child process may be left. A correct
 * program must give the same bits as the shared object of the same example.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/ext/plugin.h"
#include "tests/child_pids.h"
#include "tests/support.h"
#include "tests/unit/engine/ext/samples.h"

/* Option -S: packages of the system, which program.py does not need, take most of the start. */
#define PROGRAM "python3 -S '" INVAR_TEST_DATA "/plugin/program.py' "
#define EXAMPLE "python3 '" INVAR_TEST_DATA "/../engine/ext/example/reward.py'"
#define SILENT "sh '" INVAR_TEST_DATA "/plugin/hangs.sh' "
#define ALL (31u & ~(uint32_t)INVAR_PLUGIN_KIND_GROUP_REWARD)

/* Timeouts in seconds: Python starts slowly on a busy machine, a shell does not. */
#define PATIENT 60.0
#define IMPATIENT 1.0

static invar_status open_spec(invar_plugin **out, const char *spec, uint32_t kinds, double timeout)
{
    invar_plugin_options options = {
        .name = "judge", .spec = spec, .kinds = kinds, .timeout = timeout, .log_fd = -1};

    return invar_plugin_open(out, &options);
}

static invar_plugin *open_mode(const char *mode, double timeout)
{
    char spec[1024];
    invar_plugin *plugin;

    snprintf(spec, sizeof spec, PROGRAM "%s", mode);
    assert_ok(open_spec(&plugin, spec, ALL, timeout));
    return plugin;
}

/* Asserts that this process has no child, neither running nor as a zombie. */
static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

/* Requests the rewards of the six samples of samples.h. */
static invar_status request_rewards(invar_plugin *plugin, double reward[6])
{
    invar_rl_samples samples;
    invar_status status;

    make_samples(&samples);
    status = invar_plugin_reward(plugin, samples.items, 6, reward, no_parts());
    invar_rl_samples_reset(&samples);
    return status;
}

static void count_wait(void *payload)
{
    ++*(int *)payload;
}

/* ---- correct programs ------------------------------------------------------------------------ */

static void test_ext_program__example_equals_the_object(void **state)
{
    invar_loss_sample loss = loss_sample(NULL);
    invar_reward_parts measured = {NULL, 0};
    double factor;
    double program[6], object[6];
    float dlogp[3], out[3];
    uint8_t verdict[6];
    invar_rl_samples samples;
    invar_plugin *plugin;

    (void)state;
    make_samples(&samples);
    assert_ok(open_spec(&plugin, EXAMPLE, ALL, PATIENT));
    assert_string_equal(invar_plugin_title(plugin), "short-and-right");
    assert_ok(invar_plugin_hook(plugin,
                                &(invar_plugin_event){.hook = INVAR_PLUGIN_AFTER_INIT,
                                                      .step = -1,
                                                      .rollout = -1,
                                                      .run = "a",
                                                      .folder = "runs/a"},
                                NULL, 0, &measured, &factor));
    assert_int_equal(measured.count, 1);
    assert_true(invar_reward_parts_find(&measured, "seconds")->value >= 0);
    invar_reward_parts_release(&measured);
    assert_ok(invar_plugin_begin_step(plugin, 7, NULL));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, program, no_parts()));
    samples.items[1].finish = INVAR_FINISH_LENGTH;
    assert_ok(invar_plugin_filter(plugin, samples.items, 6, verdict));
    assert_memory_equal(verdict, "\0\1\0\0\0\0", 6);
    assert_ok(invar_plugin_loss(out, dlogp, &loss, plugin));
    for (int i = 0; i < 3; i++)
        assert_true(dlogp[i] == -loss.advantage[i]);
    assert_int_equal(invar_plugin_get_replies(plugin).count, 3); // replies of hooks are not kept
    invar_plugin_close(plugin);
    assert_no_child();

    assert_ok(
        open_spec(&plugin, INVAR_TEST_WORK "/../plugins/reward.so", INVAR_PLUGIN_KIND_REWARD, 0));
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, object, no_parts()));
    assert_memory_equal(program, object, sizeof program);
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

/* Floats that a program echoes come back with the same bits, -0 and subnormals included. */
static void test_ext_program__floats_travel_exactly(void **state)
{
    int64_t count = invar_test_count(3000, 100000);
    invar_plugin *plugin = open_mode("echo", PATIENT);
    float *values, *dlogp, *out;
    invar_loss_sample loss;

    (void)state;
    assert_ok(INVAR_ALLOC(values, (size_t)count, "values"));
    assert_ok(INVAR_ALLOC(dlogp, (size_t)count, "values"));
    assert_ok(INVAR_ALLOC(out, (size_t)count, "values"));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = invar_test_random(11, (uint64_t)i);
        bits &= (bits >> 23 & 255) == 255 ? ~UINT32_C(0x00800000) : ~UINT32_C(0); // finite
        memcpy(&values[i], &bits, sizeof bits);
    }
    values[0] = -0.0f;
    values[1] = 0.0f;
    values[2] = 0x1p-149f;
    loss = (invar_loss_sample){.tokens = count, .logp = values, .old_logp = values};
    assert_ok(invar_plugin_loss(out, dlogp, &loss, plugin));
    invar_assert_bits_f32(dlogp, values, count, "dlogp");
    invar_assert_bits_f32(out, values, count, "loss");
    invar_plugin_close(plugin);
    invar_free(values);
    invar_free(dlogp);
    invar_free(out);
}

static void test_ext_program__text_travels_exactly(void **state)
{
    static const char response[] = "\x01\x1f\"\\/\n\r\t \x7f\xc3\xa9\xf0\x9f\x98\x80\0end";
    invar_plugin *plugin = open_mode("echo", PATIENT);
    invar_rl_samples samples;
    double reward[6];

    (void)state;
    make_samples(&samples);
    invar_free(samples.items[0].response);
    assert_ok(INVAR_ALLOC(samples.items[0].response, sizeof response, "text"));
    memcpy(samples.items[0].response, response, sizeof response);
    samples.items[0].response_bytes = sizeof response - 1;
    samples.items[0].data.metadata = "{\"a\":[1,{\"b\":null}]}";
    assert_ok(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()));
    samples.items[0].response[0] = '\xff';
    assert_fails(invar_plugin_reward(plugin, samples.items, 6, reward, no_parts()), INVAR_E_INVALID,
                 "not UTF-8");
    assert_ok(
        request_rewards(plugin, reward)); // the program still runs: it never got the invalid text
    invar_plugin_close(plugin);
    invar_rl_samples_reset(&samples);
}

/* Request and reply exceed the capacity of a pipe, and the program floods standard error. */
static void test_ext_program__large_and_noisy(void **state)
{
    const int64_t count = invar_test_count(30000, 200000);
    invar_plugin *plugin = open_mode("flood", PATIENT);
    float *values, *dlogp;
    invar_loss_sample loss;

    (void)state;
    assert_ok(INVAR_ALLOC(values, (size_t)count, "values"));
    assert_ok(INVAR_ALLOC(dlogp, (size_t)count, "values"));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)i;
    loss = (invar_loss_sample){.tokens = count, .logp = values, .old_logp = values};
    assert_ok(invar_plugin_loss(dlogp, dlogp, &loss, plugin));
    invar_assert_bits_f32(dlogp, values, count, "dlogp");
    invar_plugin_close(plugin);
    invar_free(values);
    invar_free(dlogp);
}

static void test_ext_program__standard_error_goes_to_the_log(void **state)
{
    char path[] = INVAR_TEST_WORK "/plugin-log-XXXXXX", text[256] = "";
    int fd = mkstemp(path);
    invar_plugin_options options = {.name = "judge",
                                    .spec = EXAMPLE,
                                    .kinds = INVAR_PLUGIN_KIND_HOOK,
                                    .timeout = PATIENT,
                                    .log_fd = fd};
    invar_reward_parts measured = {NULL, 0};
    double factor;
    invar_plugin *plugin;

    (void)state;
    assert_ok(invar_plugin_open(&plugin, &options));
    assert_ok(invar_plugin_hook(
        plugin,
        &(invar_plugin_event){
            .hook = INVAR_PLUGIN_BEFORE_TRAIN_STEP, .step = 12, .run = "a", .folder = "runs/a"},
        NULL, 0, &measured, &factor));
    invar_reward_parts_release(&measured);
    invar_plugin_close(plugin);
    assert_true(pread(fd, text, sizeof text - 1, 0) > 0);
    assert_string_equal(text, "reward.py: before_train_step of step 12\n");
    close(fd);
    unlink(path);
}

/*
 * A program gets no file descriptors except its three streams (reward 0 counts the others), and
 * leads its own process group, so that it can be killed with its children (reward 1).
 */
static void test_ext_program__inherits_nothing(void **state)
{
    int fd = open("/dev/null", O_RDONLY); // without O_CLOEXEC
    invar_plugin *plugin = open_mode("environment", PATIENT);
    double reward[6];

    (void)state;
    assert_true(fd > 2);
    assert_ok(request_rewards(plugin, reward));
    assert_true(reward[0] == 0);
    assert_true(reward[1] == 1);
    invar_plugin_close(plugin);
    close(fd);
}

static void test_ext_program__stored_replies(void **state)
{
    invar_ledger_plugin_reply item;
    invar_plugin_replies stored = {&item, 1};
    double recorded[6], replayed[6], factor;
    char data[256];
    invar_plugin *plugin = open_mode("echo", PATIENT);

    (void)state;
    assert_ok(invar_plugin_begin_step(plugin, 5, NULL));
    assert_ok(request_rewards(plugin, recorded));
    assert_true(recorded[5] == 105 / 8.0);
    item = invar_plugin_get_replies(plugin).items[0];
    memcpy(data, item.data, item.bytes);
    item.data = data;
    item.plugin = "judge";
    assert_int_equal(data[0], '{');
    invar_plugin_close(plugin);

    assert_ok(open_spec(&plugin, NULL, ALL, 0));
    assert_ok(invar_plugin_begin_step(plugin, 5, &stored));
    assert_ok(
        invar_plugin_hook(plugin, &(invar_plugin_event){.hook = 0}, NULL, 0, no_parts(), &factor));
    assert_fails(request_rewards(plugin, replayed), INVAR_E_NOTFOUND,
                 "call 1"); // the hook was call 0
    assert_ok(invar_plugin_begin_step(plugin, 5, &stored));
    assert_ok(request_rewards(plugin, replayed));
    assert_memory_equal(recorded, replayed, sizeof recorded);
    invar_plugin_close(plugin);
}

/* ---- faulty programs: at the start ----------------------------------------------------------- */

static void assert_open_fails(const char *spec, invar_status code, const char *text, double timeout)
{
    invar_plugin *plugin;

    assert_fails(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, timeout), code, text);
    invar_assert_message("plug-in judge: ", __FILE__, __LINE__);
    assert_null(plugin);
    assert_no_child();
}

static void test_ext_program__bad_commands(void **state)
{
    (void)state;
    assert_open_fails("/no/such/program -x", INVAR_E_IO,
                      INVAR_TEST_CANNOT_START("/no/such/program: No such file"), PATIENT);
    assert_open_fails("no-such-program-either", INVAR_E_IO, INVAR_TEST_CANNOT_START(""), PATIENT);
    assert_open_fails("/etc/passwd", INVAR_E_IO,
                      INVAR_TEST_CANNOT_START("/etc/passwd: Permission denied"), PATIENT);
    assert_open_fails("python3 'unfinished", INVAR_E_INVALID, "a quote without its end", PATIENT);
    assert_open_fails("  \t ", INVAR_E_INVALID, "the command is empty", PATIENT);
    assert_open_fails("true", INVAR_E_INVALID, "a timeout below 0", -1);
    assert_open_fails("true", INVAR_E_INVALID, "a timeout below 0", NAN);
}

static void test_ext_program__words_of_a_command(void **state)
{
    invar_plugin *plugin;

    (void)state;
    // the program prints its arguments; together they are a valid greeting
    assert_ok(open_spec(&plugin,
                        "\tsh  -c 'read -r _; printf \"%s%s%s\\n\" \"$@\"' sh "
                        "'{\"invar\":1,\"name\":\"a b\"' \"\" ',\"kinds\":['\"\"'\"reward\"]}' ",
                        INVAR_PLUGIN_KIND_REWARD, PATIENT));
    assert_string_equal(invar_plugin_title(plugin), "a b");
    invar_plugin_close(plugin);
    assert_no_child();
}

/* The wait callback runs while a reply is awaited, from a silent and from a noisy program. */
static void test_ext_program__wait_callback_runs(void **state)
{
    static const char *const specs[2] = {SILENT "hang", SILENT "mutter"};
    invar_plugin *plugin;
    double reward[6];
    int n_waits = 0;

    (void)state;
    invar_plugin_set_wait_callback(NULL, count_wait, &n_waits);
    for (int i = 0; i < 2; i++) {
        assert_ok(open_spec(&plugin, specs[i], INVAR_PLUGIN_KIND_REWARD, 1.5));
        n_waits = 0;
        invar_plugin_set_wait_callback(plugin, count_wait, &n_waits);
        assert_int_equal(n_waits, 0);
        assert_fails(request_rewards(plugin, reward), INVAR_E_IO,
                     "no reply within 1.5 s (plugin-timeout)");
        assert_true(n_waits >=
                    (i == 0 ? 1 : 4)); // not only once at the end: heartbeats would be late
        invar_plugin_close(plugin);
        assert_no_child();
    }
}

/* A program may greet before it has read the request, with and without a delay. */
static void test_ext_program__early_greeting(void **state)
{
    static const char *const pauses[2] = {"", "sleep 0.3; "};
    invar_plugin *plugin;
    char spec[256];

    (void)state;
    for (int i = 0; i < 4; i++) {
        snprintf(spec, sizeof spec,
                 "sh -c '%s echo \"{\\\"invar\\\":1,\\\"name\\\":\\\"a\\\","
                 "\\\"kinds\\\":[\\\"reward\\\"]}\"; cat >/dev/null'",
                 pauses[i % 2]);
        assert_ok(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, PATIENT));
        invar_plugin_close(plugin);
    }
    assert_no_child();
}

static void test_ext_program__bad_greetings(void **state)
{
    (void)state;
    assert_open_fails(PROGRAM "exit-at-once", INVAR_E_IO, "it ended with exit code 3", PATIENT);
    assert_open_fails("false", INVAR_E_IO, "it ended with exit code 1", PATIENT);
    assert_open_fails("sh -c exit --key secret", INVAR_E_IO,
                      "; the program 'sh -c' has to greet as docs/plugins.md says", PATIENT);
    assert_open_fails(SILENT "greeting", INVAR_E_IO, "no reply within 1 s (plugin-timeout)",
                      IMPATIENT);
    assert_open_fails(PROGRAM "greet-rubbish", INVAR_E_CORRUPT, "is not JSON", PATIENT);
    assert_open_fails(
        "sh -c 'read -r _; echo loading the judge'", INVAR_E_CORRUPT,
        "standard output is for replies: print to standard error, not 'loading the judge'",
        PATIENT);
    assert_open_fails(PROGRAM "greet-version", INVAR_E_UNSUPPORTED, "version 2 of the protocol",
                      PATIENT);
    assert_open_fails(PROGRAM "greet-nameless", INVAR_E_CORRUPT, "\"name\" is missing", PATIENT);
    assert_open_fails(PROGRAM "greet-kinds", INVAR_E_INVALID, "does not offer the kind \"reward\"",
                      PATIENT);
    assert_open_fails("sh -c 'read -r _; echo 7'", INVAR_E_CORRUPT, "its line is no JSON object",
                      PATIENT);
    assert_open_fails("sh -c 'read -r _; echo \"{\\\"invar\\\":1,\\\"name\\\":\\\"a\\\"}\"'",
                      INVAR_E_CORRUPT, "no list \"kinds\"", PATIENT);
}

/* ---- faulty programs: in a call -------------------------------------------------------------- */

/* Opens the program and asserts that its first request fails and that it is killed at once. */
static void assert_request_fails(const char *spec, invar_status code, const char *text,
                                 double timeout)
{
    invar_plugin *plugin;
    double reward[6];

    assert_ok(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, timeout));
    assert_fails(request_rewards(plugin, reward), code, text);
    invar_assert_message("plug-in judge: ", __FILE__, __LINE__);
    assert_no_child(); // before the plug-in is closed
    assert_int_equal(invar_plugin_get_replies(plugin).count, 0);
    assert_fails(request_rewards(plugin, reward), INVAR_E_STATE,
                 "it has ended after an earlier failure");
    invar_plugin_close(plugin);
}

static void assert_mode_fails(const char *mode, invar_status code, const char *text)
{
    char spec[1024];

    snprintf(spec, sizeof spec, PROGRAM "%s", mode);
    assert_request_fails(spec, code, text, PATIENT);
}

static void test_ext_program__deaths(void **state)
{
    (void)state;
    assert_mode_fails("crash", INVAR_E_IO, "it was killed by signal 11: Traceback: it hurts");
    assert_mode_fails("exit", INVAR_E_IO, "it ended with exit code 3: no model: cannot judge");
    assert_mode_fails("leave", INVAR_E_IO, "it ended with exit code 0");
    assert_mode_fails("partial", INVAR_E_IO, "it ended with exit code 0");
    assert_mode_fails("close", INVAR_E_IO, "it closed its output");
}

/* Sends a request to a program that dies `deaths` times and may be restarted twice. */
static invar_status request_with_restarts(invar_plugin **out, const char *mode, int deaths,
                                          double reward[6])
{
    char spec[1024];
    FILE *file = fopen(INVAR_TEST_WORK "/deaths", "w");

    assert_non_null(file);
    fprintf(file, "%d", deaths);
    assert_int_equal(fclose(file), 0);
    snprintf(spec, sizeof spec, PROGRAM "%s '" INVAR_TEST_WORK "/deaths'", mode);
    assert_ok(invar_plugin_open(out, &(invar_plugin_options){.name = "judge",
                                                             .spec = spec,
                                                             .kinds = INVAR_PLUGIN_KIND_REWARD,
                                                             .timeout = PATIENT,
                                                             .restarts = 2,
                                                             .log_fd = -1}));
    return request_rewards(*out, reward);
}

static void test_ext_program__is_started_again_after_its_death(void **state)
{
    double reward[6], expected[6];
    invar_plugin *plugin, *control = open_mode("good", PATIENT);

    (void)state;
    assert_ok(request_rewards(control, expected));
    for (int deaths = 0; deaths <= 2; deaths += (int)invar_test_count(2, 1)) {
        assert_ok(request_with_restarts(&plugin, "mortal", deaths, reward));
        assert_memory_equal(reward, expected, sizeof reward);
        assert_int_equal(invar_plugin_restarts(plugin), deaths);
        assert_int_equal(invar_plugin_get_replies(plugin).count, 1);
        assert_ok(request_rewards(plugin, reward)); // the file counts below 0 now: no further death
        assert_int_equal(invar_plugin_restarts(plugin), deaths);
        invar_plugin_close(plugin);
    }
    assert_fails(request_with_restarts(&plugin, "mortal", 3, reward), INVAR_E_IO,
                 "it ended with exit code 3; it was started again 2 times (max-restarts)");
    assert_int_equal(invar_plugin_get_replies(plugin).count, 0);
    invar_plugin_close(plugin);
    // an invalid reply causes no restart: it would be invalid again
    assert_fails(request_with_restarts(&plugin, "wrong-id", 0, reward), INVAR_E_CORRUPT,
                 "the reply has id 1");
    assert_int_equal(invar_plugin_restarts(plugin), 0);
    invar_plugin_close(plugin);
    // a program that ends before its greeting is not restarted either
    assert_fails(
        invar_plugin_open(&plugin, &(invar_plugin_options){.name = "judge",
                                                           .spec = PROGRAM "exit-at-once",
                                                           .kinds = INVAR_PLUGIN_KIND_REWARD,
                                                           .timeout = PATIENT,
                                                           .restarts = 2,
                                                           .log_fd = -1}),
        INVAR_E_IO,
        "it ended with exit code 3; it had not greeted yet, and max-restarts does not "
        "apply before that: run the command by itself");
    invar_plugin_close(control);
    assert_no_child();
}

static void test_ext_program__silences(void **state)
{
    (void)state;
    if (invar_test_full()) // else in test_ext_program__wait_callback_runs
        assert_request_fails(SILENT "hang", INVAR_E_IO, "no reply within 1 s (plugin-timeout)",
                             IMPATIENT);
    assert_request_fails(SILENT "partial", INVAR_E_IO, "no reply within 1 s", IMPATIENT);
    assert_request_fails(SILENT "flood", INVAR_E_IO, "within 1 s (plugin-timeout): zzz", IMPATIENT);
}

static void test_ext_program__invalid_replies(void **state)
{
    (void)state;
    assert_mode_fails("rubbish", INVAR_E_CORRUPT, "is not JSON");
    assert_mode_fails(
        "print-reply", INVAR_E_CORRUPT,
        "it wrote more than one line for one request; standard output is for replies: "
        "print to standard error, not 'judging 6 samples'");
    assert_mode_fails(
        "reply-print", INVAR_E_CORRUPT,
        "it wrote more than one line for one request; standard output is for replies: "
        "print to standard error, not '[0.5, 1.0]'");
    assert_mode_fails("print", INVAR_E_CORRUPT,
                      "standard output is for replies: print to standard error, not '{'a': 1}'");
    assert_mode_fails("deep", INVAR_E_CORRUPT, "nested deeper");
    assert_mode_fails("huge", INVAR_E_CORRUPT, "its reply is longer than 64 MiB");
    assert_mode_fails("wrong-id", INVAR_E_CORRUPT, "the reply has id 1, the request had 0");
    assert_mode_fails("no-id", INVAR_E_CORRUPT, "\"id\" is missing");
    assert_mode_fails("two-lines", INVAR_E_CORRUPT, "it wrote");
    assert_mode_fails("count", INVAR_E_CORRUPT, "\"rewards\" has 1 values, expected 6");
    assert_mode_fails("nothing", INVAR_E_CORRUPT, "the reply has no list \"rewards\"");
    assert_mode_fails("refuse", INVAR_E_STATE, "it refuses: the judge is?out");
}

/* A line that comes without a request is found at the next request. */
static void test_ext_program__late_line(void **state)
{
    char path[] = INVAR_TEST_WORK "/plugin-late-XXXXXX", spec[1024];
    int fd = mkstemp(path);
    invar_plugin *plugin;
    invar_status status;
    double reward[6];

    (void)state;
    snprintf(spec, sizeof spec, PROGRAM "late '%s'", path);
    assert_ok(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, PATIENT));
    status = request_rewards(plugin, reward);
    if (status == INVAR_OK) {
        while (lseek(fd, 0, SEEK_END) == 0)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        assert_fails(request_rewards(plugin, reward), INVAR_E_CORRUPT,
                     "it wrote a line without a request");
    } else { // both lines came together
        assert_fails(status, INVAR_E_CORRUPT, "more than one line");
    }
    invar_plugin_close(plugin);
    close(fd);
    unlink(path);
}

/* The program replaces its reward for the sample, 0.125, by something that is not a number. */
static void test_ext_program__wrong_numbers(void **state)
{
    static const struct {
        const char *mode, *text;
    } cases[] = {{"nan", "is not JSON"}, {"overflow", "is not JSON"}, {"text", "no number at 0"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_plugin *plugin = open_mode(cases[i].mode, PATIENT);
        invar_rl_samples samples;
        double reward[1];
        make_samples(&samples);
        samples.items[0].index = 1; // reward index / 8 = 0.125
        assert_fails(invar_plugin_reward(plugin, samples.items, 1, reward, no_parts()),
                     INVAR_E_CORRUPT, cases[i].text);
        invar_plugin_close(plugin);
        invar_rl_samples_reset(&samples);
    }
}

/* The program replies before it has read the request, which exceeds the capacity of a pipe. */
static void test_ext_program__early_reply(void **state)
{
    const int64_t count = 100000;
    invar_plugin *plugin = open_mode("early", PATIENT);
    float *values;
    invar_loss_sample loss;

    (void)state;
    assert_ok(INVAR_ALLOC(values, (size_t)count, "values"));
    memset(values, 0, (size_t)count * sizeof *values);
    loss = (invar_loss_sample){.tokens = count, .logp = values, .old_logp = values};
    assert_fails(invar_plugin_loss(values, values, &loss, plugin), INVAR_E_CORRUPT,
                 "it replied before it had read the request");
    assert_no_child();
    invar_plugin_close(plugin);
    invar_free(values);
}

/* Descendants die with the program, even an orphan in a session of its own. */
static void test_ext_program__children_are_killed_too(void **state)
{
    static const char *const modes[] = {"children", "session"};
    char path[] = INVAR_TEST_WORK "/plugin-child-XXXXXX", spec[1024];
    int fd = mkstemp(path);
    invar_plugin *plugin;
    double reward[6];

    (void)state;
    close(fd);
    for (size_t i = invar_test_full() ? 0 : 1; i < sizeof modes / sizeof *modes; i++) {
        snprintf(spec, sizeof spec, SILENT "%s '%s'", modes[i], path);
        assert_ok(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, IMPATIENT));
        assert_fails(request_rewards(plugin, reward), INVAR_E_IO, "no reply within 1 s");
        invar_plugin_close(plugin);
        assert_true(invar_test_wait_exit(invar_test_read_pid(path)));
        unlink(path);
    }
}

/* A program that never reads its input again dies when the engine is killed. */
static void test_ext_program__dies_with_us(void **state)
{
    char path[] = INVAR_TEST_WORK "/plugin-busy-XXXXXX", spec[1024];
    int fd = mkstemp(path);
    invar_plugin *plugin;
    double reward[6];
    pid_t engine, program_pid;

    (void)state;
    close(fd);
    engine = fork();
    assert_true(engine >= 0);
    if (engine == 0) {
        snprintf(spec, sizeof spec, SILENT "busy '%s'", path);
        assert_ok(open_spec(&plugin, spec, INVAR_PLUGIN_KIND_REWARD, PATIENT));
        (void)request_rewards(plugin, reward);
        _exit(99);
    }
    program_pid = invar_test_read_pid(path);
    assert_int_equal(kill(engine, SIGKILL), 0);
    assert_int_equal(waitpid(engine, NULL, 0), engine);
    assert_true(invar_test_wait_exit(program_pid));
    unlink(path);
}

/* At most 1 MiB of standard error is logged per request, and the log reports the cut. */
static void test_ext_program__standard_error_is_limited(void **state)
{
    char path[] = INVAR_TEST_WORK "/plugin-flood-XXXXXX", log_end[128] = "";
    int fd = mkstemp(path);
    invar_plugin_options options = {.name = "judge",
                                    .spec = PROGRAM "flood",
                                    .kinds = INVAR_PLUGIN_KIND_REWARD,
                                    .timeout = PATIENT,
                                    .log_fd = fd};
    invar_plugin *plugin;
    double reward[6];
    off_t bytes;

    (void)state;
    assert_ok(invar_plugin_open(&plugin, &options));
    assert_ok(request_rewards(plugin, reward));
    bytes = lseek(fd, 0, SEEK_END);
    assert_in_range(bytes, 1 << 20, (1 << 20) + 128);
    assert_true(pread(fd, log_end, sizeof log_end - 1, bytes - (off_t)sizeof log_end + 1) > 0);
    assert_non_null(strstr(log_end, "more than 1 MiB to standard error"));
    assert_ok(request_rewards(plugin, reward)); // the next request has its own limit
    assert_in_range(lseek(fd, 0, SEEK_END), 2 << 20, (2 << 20) + 256);
    invar_plugin_close(plugin);
    close(fd);
    unlink(path);
}

/* Closing a plug-in kills a program that continues after the end of its input. */
static void test_ext_program__close_ends_it(void **state)
{
    (void)state;
    invar_plugin_close(open_mode("stay", PATIENT));
    assert_no_child();
    invar_plugin_close(open_mode("echo", PATIENT));
    assert_no_child();
}

/* Writing to a program that has ended must not kill the engine, even if SIGPIPE is not ignored. */
static void test_ext_program__no_death_by_pipe(void **state)
{
    struct sigaction standard = {.sa_handler = SIG_DFL}, before;

    (void)state;
    sigaction(SIGPIPE, &standard, &before);
    for (int i = 0; i < 3; i++)
        assert_mode_fails("leave", INVAR_E_IO, "it ended with exit code 0");
    sigaction(SIGPIPE, &before, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ext_program__example_equals_the_object),
        cmocka_unit_test(test_ext_program__floats_travel_exactly),
        cmocka_unit_test(test_ext_program__text_travels_exactly),
        cmocka_unit_test(test_ext_program__large_and_noisy),
        cmocka_unit_test(test_ext_program__standard_error_goes_to_the_log),
        cmocka_unit_test(test_ext_program__inherits_nothing),
        cmocka_unit_test(test_ext_program__stored_replies),
        cmocka_unit_test(test_ext_program__bad_commands),
        cmocka_unit_test(test_ext_program__words_of_a_command),
        cmocka_unit_test(test_ext_program__wait_callback_runs),
        cmocka_unit_test(test_ext_program__early_greeting),
        cmocka_unit_test(test_ext_program__bad_greetings),
        cmocka_unit_test(test_ext_program__deaths),
        cmocka_unit_test(test_ext_program__is_started_again_after_its_death),
        cmocka_unit_test(test_ext_program__silences),
        cmocka_unit_test(test_ext_program__invalid_replies),
        cmocka_unit_test(test_ext_program__late_line),
        cmocka_unit_test(test_ext_program__wrong_numbers),
        cmocka_unit_test(test_ext_program__early_reply),
        cmocka_unit_test(test_ext_program__children_are_killed_too),
        cmocka_unit_test(test_ext_program__dies_with_us),
        cmocka_unit_test(test_ext_program__standard_error_is_limited),
        cmocka_unit_test(test_ext_program__close_ends_it),
        cmocka_unit_test(test_ext_program__no_death_by_pipe),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
