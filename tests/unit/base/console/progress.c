/*
 * progress.c - tests of the progress display, and of the detection of terminals and their features.
 *
 * Displays write into memory under a clock that only the tests advance, so every line is exact. The
 * tests of terminals use a pseudo-terminal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // pseudo-terminals

#include "base/console/progress.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/console/term.h"
#include "base/pool.h"
#include "tests/support.h"

/* A display that writes into memory, with a clock that the test advances. */
typedef struct screen {
    invar_progress *progress;
    FILE *stream;
    char *text;
    size_t bytes;
    uint64_t now; /* the clock, in nanoseconds */
} screen;

static uint64_t screen_clock(void *payload)
{
    return ((screen *)payload)->now;
}

static void screen_open(screen *s, invar_progress_options options)
{
    memset(s, 0, sizeof *s);
    s->now = UINT64_C(5000000000);
    s->stream = open_memstream(&s->text, &s->bytes);
    assert_non_null(s->stream);
    options.stream = s->stream;
    options.title = options.title ? options.title : "train";
    options.clock = screen_clock;
    options.clock_payload = s;
    assert_ok(invar_progress_new(&s->progress, &options));
}

static void advance_clock(screen *s, double seconds)
{
    s->now += (uint64_t)(seconds * 1e9);
}

static void assert_screen(const screen *s, const char *expected)
{
    fflush(s->stream);
    assert_string_equal(s->text, expected);
}

static void screen_end(screen *s, const char *expected)
{
    invar_progress_free(s->progress);
    assert_screen(s, expected);
    fclose(s->stream);
    free(s->text);
}

/* ---- plain lines ----------------------------------------------------------------------------- */

static void test_base_progress__plain_lines_keep_the_interval(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.unit = "steps",
                                             .total = 1000,
                                             .mode = INVAR_PROGRESS_MODE_PLAIN,
                                             .interval_s = 2});
    invar_progress_update(s.progress, 0, NULL);
    advance_clock(&s, 1.9);
    invar_progress_update(s.progress, 190, "loss 0.5");
    assert_screen(&s, "");
    advance_clock(&s, 0.1);
    invar_progress_update(s.progress, 200, NULL);
    assert_screen(&s, "train: 200/1000 steps, 20%, 100.0/s, ETA 8s, loss 0.5\n");
    advance_clock(&s, 1.5);
    invar_progress_update(s.progress, 300, NULL);
    advance_clock(&s, 0.5);
    invar_progress_update(s.progress, 1000, "loss 0.25");
    screen_end(&s, "train: 200/1000 steps, 20%, 100.0/s, ETA 8s, loss 0.5\n"
                   "train: 1000/1000 steps, 100%, 250.0/s, loss 0.25\n");
}

static void test_base_progress__short_work_gives_one_line(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 4});
    for (int i = 1; i <= 4; i++) {
        advance_clock(&s, 0.5);
        invar_progress_update(s.progress, i, NULL);
    }
    screen_end(&s, "train: 4/4, 100%, 2.0/s, 2s\n");
}

static void test_base_progress__default_interval_is_ten_seconds(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 100, .mode = INVAR_PROGRESS_MODE_PLAIN});
    advance_clock(&s, 9.9);
    invar_progress_update(s.progress, 1, NULL);
    assert_screen(&s, "");
    advance_clock(&s, 0.1);
    invar_progress_update(s.progress, 1, NULL);
    screen_end(&s, "train: 1/100, 1%, 10.0 s each, ETA 16m30s\n");
}

static void test_base_progress__expectation_overrides_the_mean(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 100, .interval_s = 1});
    invar_progress_expect(NULL, 1); // silent
    advance_clock(&s, 10);
    invar_progress_expect(s.progress, 42);
    invar_progress_update(s.progress, 10, NULL);
    advance_clock(&s, 2); // the expected remaining time counts down
    invar_progress_update(s.progress, 10, NULL);
    advance_clock(&s, 60); // an overdue ETA is 0
    invar_progress_update(s.progress, 10, NULL);
    invar_progress_expect(s.progress, (double)NAN); // no expectation: the mean rate is used
    advance_clock(&s, 8);
    invar_progress_update(s.progress, 20, NULL);
    screen_end(&s, "train: 10/100, 10%, 1.0/s, ETA 42s\n"
                   "train: 10/100, 10%, 1.2 s each, ETA 40s\n"
                   "train: 10/100, 10%, 7.2 s each, ETA 0s\n"
                   "train: 20/100, 20%, 4.0 s each, ETA 5m20s\n");
}

static void test_base_progress__without_total_there_is_no_eta(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.unit = "tokens", .interval_s = 1});
    advance_clock(&s, 1);
    invar_progress_update(s.progress, 2500000, NULL);
    screen_end(&s, "train: 2500000 tokens, 2.5M/s\n");
}

static void test_base_progress__resumed_work_is_not_in_the_rate(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.first = 900, .total = 1000, .interval_s = 10});
    advance_clock(&s, 10);
    invar_progress_update(s.progress, 910, NULL);
    screen_end(&s, "train: 910/1000, 91%, 1.0/s, ETA 1m30s\n");
}

static void test_base_progress__formats_durations(void **state)
{
    static const struct {
        double seconds;
        const char *line;
    } cases[] = {{0.2, "train: 1, 5.0/s, 0s\n"},
                 {59, "train: 1, 59.0 s each, 59s\n"},
                 {61, "train: 1, 61.0 s each, 1m01s\n"},
                 {3600, "train: 1, 3600.0 s each, 1h00m\n"},
                 {90000, "train: 1, 90000.0 s each, 1d01h\n"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        screen s;
        screen_open(&s, (invar_progress_options){.interval_s = 1e6});
        advance_clock(&s, cases[i].seconds);
        invar_progress_update(s.progress, 1, NULL);
        screen_end(&s, cases[i].line);
    }
}

static void test_base_progress__never_shows_100_percent_early(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 100000, .interval_s = 1});
    advance_clock(&s, 1);
    invar_progress_update(s.progress, 99999, NULL);
    screen_end(&s, "train: 99999/100000, 99%, 100.0k/s, ETA 0s\n");
}

static void test_base_progress__count_never_goes_back(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 10});
    invar_progress_update(s.progress, 7, NULL);
    invar_progress_update(s.progress, 3, NULL);
    invar_progress_update(s.progress, INT64_MIN, NULL);
    advance_clock(&s, 1);
    screen_end(&s, "train: 7/10, 70%, 7.0/s, 1s\n");
}

static void test_base_progress__extreme_counts_are_harmless(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.first = 0, .total = INT64_MAX, .interval_s = 1});
    advance_clock(&s, 1);
    invar_progress_update(s.progress, 1, NULL);
    advance_clock(&s, 1);
    invar_progress_update(s.progress, INT64_MAX, NULL);
    screen_end(&s, "train: 1/9223372036854775807, 0%, 1.0/s, ETA 11574d01h\n"
                   "train: 9223372036854775807/9223372036854775807, 100%, 4611686.0T/s\n");
}

/* ---- the terminal ---------------------------------------------------------------------------- */

static invar_progress_options terminal_options(int columns, bool color)
{
    return (invar_progress_options){.unit = "steps",
                                    .total = 10,
                                    .mode = INVAR_PROGRESS_MODE_TERMINAL,
                                    .columns = columns,
                                    .color = color};
}

static void test_base_progress__terminal_overwrites_one_line(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, terminal_options(80, false));
    invar_progress_update(s.progress, 0, NULL);
    assert_screen(&s, "\rtrain  [>                   ]  0/10 steps  0%\x1b[K");
    advance_clock(&s, 0.05);
    invar_progress_update(s.progress, 1, NULL); // too early to redraw
    advance_clock(&s, 0.95);
    invar_progress_update(s.progress, 5, "loss 0.5");
    advance_clock(&s, 1);
    invar_progress_update(s.progress, 10, NULL);
    screen_end(&s,
               "\rtrain  [>                   ]  0/10 steps  0%\x1b[K"
               "\rtrain  [==========>         ]  5/10 steps  50%  5.0/s  ETA 1s  loss 0.5\x1b[K"
               "\rtrain  [====================]  10/10 steps  100%  5.0/s  loss 0.5\x1b[K"
               "\rtrain  [====================]  10/10 steps  100%  5.0/s  2s  loss 0.5\x1b[K\n");
}

static void test_base_progress__colors_only_the_bar(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, terminal_options(80, true));
    invar_progress_update(s.progress, 5, NULL);
    assert_screen(&s, "\rtrain  [\x1b[32m==========>         \x1b[0m]  5/10 steps  50%\x1b[K");
    invar_progress_free(s.progress);
    fclose(s.stream);
    free(s.text);
}

static void test_base_progress__fits_a_narrow_terminal(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, terminal_options(23, false));
    invar_progress_update(s.progress, 5, "a message that does not fit");
    assert_screen(&s, "\rtrain  5/10 steps  50%\x1b[K");
    invar_progress_free(s.progress);
    fclose(s.stream);
    free(s.text);
    screen_open(&s, terminal_options(1, false));
    invar_progress_update(s.progress, 5, NULL);
    screen_end(&s, "\r\x1b[K\r\x1b[K\n");
}

static void test_base_progress__messages_cannot_break_the_line(void **state)
{
    screen s;

    (void)state;
    // 27 columns are left for the message; a character that does not fit is omitted, not cut
    screen_open(&s, terminal_options(52, false));
    invar_progress_update(s.progress, 5,
                          "a\nb\x1b[2J\r \xC3\xA4\xE6\xA8\xA1\xE6\xA8\xA1 01234567890123");
    assert_screen(&s, "\rtrain  5/10 steps  50%  a b [2J  \xC3\xA4\xE6\xA8\xA1\xE6\xA8\xA1 "
                      "012345678901\x1b[K");
    invar_progress_free(s.progress);
    fclose(s.stream);
    free(s.text);
}

/* ---- silence --------------------------------------------------------------------------------- */

static void test_base_progress__silent_and_null_write_nothing(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 4, .mode = INVAR_PROGRESS_MODE_SILENT});
    advance_clock(&s, 100);
    invar_progress_update(s.progress, 4, "message");
    screen_end(&s, "");
    invar_progress_update(NULL, 1, "message");
    invar_progress_free(NULL);
}

static void test_base_progress__no_update_no_line(void **state)
{
    screen s;

    (void)state;
    screen_open(&s, (invar_progress_options){.total = 4});
    advance_clock(&s, 100);
    screen_end(&s, "");
}

static void test_base_progress__rejects_negative_total(void **state)
{
    invar_progress *progress;

    (void)state;
    assert_fails(
        invar_progress_new(
            &progress, &(invar_progress_options){.stream = stderr, .title = "train", .total = -1}),
        INVAR_E_INVALID, "progress train: a negative total");
    assert_null(progress);
}

static void test_base_progress__survives_a_full_device(void **state)
{
    FILE *stream = fopen("/dev/full", "w");
    invar_progress *progress;

    (void)state;
    assert_non_null(stream);
    assert_ok(invar_progress_new(&progress,
                                 &(invar_progress_options){.stream = stream, .title = "train"}));
    invar_progress_update(progress, 1, NULL);
    invar_progress_free(progress);
    fclose(stream);
}

/* ---- threads --------------------------------------------------------------------------------- */

static invar_status update_task(void *payload, int64_t task, int worker)
{
    char text[32];

    snprintf(text, sizeof text, "worker %d", worker);
    invar_progress_update(payload, task + 1, text);
    return INVAR_OK;
}

static void test_base_progress__any_thread_may_update(void **state)
{
    invar_pool *pool;
    screen s;

    (void)state;
    assert_ok(invar_pool_new(&pool, 3));
    screen_open(&s, (invar_progress_options){
                        .total = 500, .mode = INVAR_PROGRESS_MODE_PLAIN, .interval_s = 1e-9});
    assert_ok(invar_pool_run(pool, 500, update_task, s.progress));
    invar_pool_free(pool);
    fflush(s.stream);
    invar_progress_free(s.progress);
    fflush(s.stream);
    assert_non_null(strstr(s.text, "train: 500/500, 100%"));
    fclose(s.stream);
    free(s.text);
}

/* ---- terminals ------------------------------------------------------------------------------- */

/* Opens a pseudo-terminal and returns its slave end. The caller closes *master_out after it. */
static FILE *open_terminal(int *master_out)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    FILE *stream;

    assert_true(master >= 0);
    assert_int_equal(grantpt(master) | unlockpt(master), 0);
    stream = fopen(ptsname(master), "r+");
    assert_non_null(stream);
    *master_out = master;
    return stream;
}

static void test_base_progress__detects_a_terminal(void **state)
{
    int master;
    FILE *stream = open_terminal(&master), *file = tmpfile();

    (void)state;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    assert_true(invar_term_live(stream));
    assert_true(invar_term_has_color(stream));
    assert_false(invar_term_live(file));
    assert_false(invar_term_has_color(file));
    setenv("NO_COLOR", "", 1);
    assert_true(invar_term_has_color(stream));
    setenv("NO_COLOR", "1", 1);
    assert_true(invar_term_live(stream));
    assert_false(invar_term_has_color(stream));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    assert_false(invar_term_live(stream));
    assert_false(invar_term_has_color(stream));
    unsetenv("TERM");
    assert_false(invar_term_live(stream));
    assert_int_equal(invar_term_width(file), 80);
    assert_int_equal(invar_term_width(stream), 80); // a new pseudo-terminal reports 0 columns
    assert_int_equal(ioctl(master, TIOCSWINSZ, &(struct winsize){.ws_col = 132}), 0);
    assert_int_equal(invar_term_width(stream), 132);
    fclose(file);
    fclose(stream);
    close(master);
}

static void test_base_progress__styles_are_escapes_or_nothing(void **state)
{
    (void)state;
    for (int style = INVAR_TERM_STYLE_PLAIN; style <= INVAR_TERM_STYLE_CYAN; style++) {
        const char *escape = invar_term_escape(true, (invar_term_style)style);
        assert_memory_equal(escape, "\x1b[", 2);
        assert_int_equal(escape[strlen(escape) - 1], 'm');
        assert_string_equal(invar_term_escape(false, (invar_term_style)style), "");
    }
}

static void test_base_progress__auto_mode_detects_the_terminal(void **state)
{
    int master;
    FILE *stream = open_terminal(&master);
    invar_progress *progress;
    char text[256] = "";

    (void)state;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    assert_ok(invar_progress_new(
        &progress, &(invar_progress_options){.stream = stream, .title = "train", .total = 2}));
    invar_progress_update(progress, 1, NULL);
    assert_true(read(master, text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "\rtrain  [==========>         ]  1/2  50%"));
    invar_progress_free(progress);
    fclose(stream);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base_progress__plain_lines_keep_the_interval),
        cmocka_unit_test(test_base_progress__short_work_gives_one_line),
        cmocka_unit_test(test_base_progress__default_interval_is_ten_seconds),
        cmocka_unit_test(test_base_progress__expectation_overrides_the_mean),
        cmocka_unit_test(test_base_progress__without_total_there_is_no_eta),
        cmocka_unit_test(test_base_progress__resumed_work_is_not_in_the_rate),
        cmocka_unit_test(test_base_progress__formats_durations),
        cmocka_unit_test(test_base_progress__never_shows_100_percent_early),
        cmocka_unit_test(test_base_progress__count_never_goes_back),
        cmocka_unit_test(test_base_progress__extreme_counts_are_harmless),
        cmocka_unit_test(test_base_progress__terminal_overwrites_one_line),
        cmocka_unit_test(test_base_progress__colors_only_the_bar),
        cmocka_unit_test(test_base_progress__fits_a_narrow_terminal),
        cmocka_unit_test(test_base_progress__messages_cannot_break_the_line),
        cmocka_unit_test(test_base_progress__silent_and_null_write_nothing),
        cmocka_unit_test(test_base_progress__no_update_no_line),
        cmocka_unit_test(test_base_progress__rejects_negative_total),
        cmocka_unit_test(test_base_progress__survives_a_full_device),
        cmocka_unit_test(test_base_progress__any_thread_may_update),
        cmocka_unit_test(test_base_progress__detects_a_terminal),
        cmocka_unit_test(test_base_progress__styles_are_escapes_or_nothing),
        cmocka_unit_test(test_base_progress__auto_mode_detects_the_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
