/*
 * progress.c - progress display of a long job on a terminal or in a log.
 *
 * One mutex per display. A line is composed in a buffer and written in one call, so that lines of
 * different displays or processes do not mix.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/console/progress.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/console/term.h"

#include "base/invar_banned.h"

#define SECOND_NS UINT64_C(1000000000)
#define REDRAW_NS (SECOND_NS / 10)
#define BAR_WIDTH 20
#define BAR_MIN_COLUMNS 60 /* narrower terminals show the numbers without the bar */

struct invar_progress {
    invar_progress_options options; /* its strings are replaced by the copies below */
    char title[48];
    char unit[24];
    char message[128];
    pthread_mutex_t lock;
    int64_t done;
    uint64_t started;
    double expected;      /* remaining seconds at the time expected_at */
    uint64_t expected_at; /* time at which `expected` was set; 0 if it was not */
    uint64_t shown;       /* time at which the last line was written; at first the start */
    bool drawn;           /* a line on the terminal can be overwritten */
    bool unshown;         /* an update was not shown yet */
};

/* A line under construction, limited in bytes and in columns. */
typedef struct line {
    char text[640];
    size_t used;
    int columns; /* free columns */
} line;

/* ---- text ------------------------------------------------------------------------------------ */

/* Appends the characters that fit completely. */
static void line_put(line *l, const char *text)
{
    while (*text) {
        unsigned char c = (unsigned char)*text;
        size_t length = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        int width = c < 0xE1 ? 1 : 2; // characters above U+1000 may be wide
        if (strnlen(text, length) < length || l->columns < width ||
            l->used + length + 1 > sizeof l->text)
            return;
        memcpy(l->text + l->used, text, length);
        l->used += length;
        l->columns -= width;
        text += length;
    }
}

/* Adds an escape sequence, which takes no column. */
static void put_escape(line *l, const char *escape)
{
    int columns = l->columns;

    l->columns = (int)sizeof l->text;
    line_put(l, escape);
    l->columns = columns;
}

/* Copies the bytes that fit; control characters, which would break the line, become blanks. */
static void copy_text(char *out, size_t size, const char *text)
{
    size_t i = 0;

    for (; text[i] && i + 1 < size; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = (char)(c < 0x20 || c == 0x7F ? ' ' : c);
    }
    out[i] = '\0';
}

static void format_duration(char *out, size_t size, double seconds)
{
    long s = lrint(fmin(seconds, 1e9)); // about 30 years

    if (s < 60)
        snprintf(out, size, "%lds", s);
    else if (s < 3600)
        snprintf(out, size, "%ldm%02lds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, size, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, size, "%ldd%02ldh", s / 86400, s / 3600 % 24);
}

static void format_rate(char *out, size_t size, double rate)
{
    static const char *const prefix[] = {"", "k", "M", "G", "T"};
    int i = 0;

    if (rate < 1) {
        snprintf(out, size, "%.1f s each", 1 / rate);
        return;
    }
    for (; rate >= 1000 && i < 4; i++)
        rate /= 1000;
    snprintf(out, size, "%.1f%s/s", rate, prefix[i]);
}

/* Returns the percentage, rounded down, so that 100 means complete. */
static int progress_percent(const invar_progress *p)
{
    if (p->done >= p->options.total)
        return 100;
    return (int)(100.0 * (double)p->done / (double)p->options.total);
}

/* Returns the remaining seconds: those that were expected, or else by the mean rate. */
static double time_left(const invar_progress *p, double rate, uint64_t now)
{
    double since = (double)(now - p->expected_at) / (double)SECOND_NS;

    if (p->expected_at)
        return fmax(p->expected - since, 0);
    return (double)(p->options.total - p->done) / rate;
}

/*
 * Appends "512/1000 steps, 51%, 3.4/s, ETA 2m23s, message"; in the last line the elapsed time
 * instead of the ETA.
 */
static void put_facts(line *l, const invar_progress *p, uint64_t now, bool last,
                      const char *separator)
{
    double elapsed = (double)(now - p->started) / (double)SECOND_NS;
    double rate = elapsed > 0 ? (double)(p->done - p->options.first) / elapsed : 0;
    int64_t left = p->options.total - p->done;
    char text[96];

    snprintf(text, sizeof text, "%lld", (long long)p->done);
    line_put(l, text);
    if (p->options.total > 0) {
        snprintf(text, sizeof text, "/%lld", (long long)p->options.total);
        line_put(l, text);
    }
    if (p->unit[0]) {
        line_put(l, " ");
        line_put(l, p->unit);
    }
    if (p->options.total > 0) {
        snprintf(text, sizeof text, "%s%d%%", separator, progress_percent(p));
        line_put(l, text);
    }
    if (rate > 0) {
        line_put(l, separator);
        format_rate(text, sizeof text, rate);
        line_put(l, text);
    }
    if (last || (rate > 0 && left > 0)) {
        line_put(l, separator);
        if (!last)
            line_put(l, "ETA ");
        format_duration(text, sizeof text, last ? elapsed : time_left(p, rate, now));
        line_put(l, text);
    }
    if (p->message[0]) {
        line_put(l, separator);
        line_put(l, p->message);
    }
}

static void put_bar(line *l, const invar_progress *p)
{
    char bar[BAR_WIDTH + 1];
    int filled = progress_percent(p) * BAR_WIDTH / 100;

    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)filled);
    if (filled < BAR_WIDTH)
        bar[filled] = '>';
    bar[BAR_WIDTH] = '\0';
    line_put(l, "  [");
    put_escape(l, invar_term_escape(p->options.color, INVAR_TERM_STYLE_GREEN));
    line_put(l, bar);
    put_escape(l, invar_term_escape(p->options.color, INVAR_TERM_STYLE_PLAIN));
    line_put(l, "]");
}

/* ---- drawing --------------------------------------------------------------------------------- */

static void draw_terminal(invar_progress *p, uint64_t now, bool last)
{
    int columns = p->options.columns ? p->options.columns : invar_term_width(p->options.stream);
    line l = {.used = 0, .columns = columns - 1}; // some terminals wrap after the last column

    put_escape(&l, "\r");
    line_put(&l, p->title);
    if (p->options.total > 0 && columns >= BAR_MIN_COLUMNS)
        put_bar(&l, p);
    line_put(&l, "  ");
    put_facts(&l, p, now, last, "  ");
    put_escape(&l, "\x1b[K"); // clears the rest of a longer previous line
    if (last)
        put_escape(&l, "\n");
    fwrite(l.text, 1, l.used, p->options.stream);
    p->drawn = true;
}

static void draw_plain(invar_progress *p, uint64_t now, bool last)
{
    line l = {.used = 0, .columns = (int)sizeof l.text};

    line_put(&l, p->title);
    line_put(&l, ": ");
    put_facts(&l, p, now, last, ", ");
    line_put(&l, "\n");
    fwrite(l.text, 1, l.used, p->options.stream);
}

static void progress_draw(invar_progress *p, uint64_t now, bool last)
{
    if (p->options.mode == INVAR_PROGRESS_MODE_TERMINAL)
        draw_terminal(p, now, last);
    else
        draw_plain(p, now, last);
    fflush(p->options.stream);
    p->shown = now;
    p->unshown = false;
}

/* ---- interface ------------------------------------------------------------------------------- */

static uint64_t monotonic_clock(void *payload)
{
    struct timespec now;

    (void)payload;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(const invar_progress *p)
{
    return p->options.clock(p->options.clock_payload);
}

invar_status invar_progress_new(invar_progress **out, const invar_progress_options *options)
{
    invar_progress *p;

    *out = NULL;
    if (options->total < 0 || options->first < 0 || options->interval_s < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "progress %s: a negative total, start or interval",
                          options->title);
    INVAR_TRY(INVAR_ALLOC_ZEROED(p, 1, "progress"));
    p->options = *options;
    copy_text(p->title, sizeof p->title, options->title);
    copy_text(p->unit, sizeof p->unit, options->unit ? options->unit : "");
    if (p->options.mode == INVAR_PROGRESS_MODE_AUTO) {
        bool live = invar_term_live(options->stream);
        p->options.mode = live ? INVAR_PROGRESS_MODE_TERMINAL : INVAR_PROGRESS_MODE_PLAIN;
        p->options.color = invar_term_has_color(options->stream);
    }
    if (!p->options.clock)
        p->options.clock = monotonic_clock;
    if (p->options.interval_s <= 0)
        p->options.interval_s = 10;
    pthread_mutex_init(&p->lock, NULL);
    p->done = options->first;
    p->started = p->shown = now_ns(p);
    *out = p;
    return INVAR_OK;
}

void invar_progress_update(invar_progress *p, int64_t done, const char *message)
{
    uint64_t now, pause;

    if (!p || p->options.mode == INVAR_PROGRESS_MODE_SILENT)
        return;
    pthread_mutex_lock(&p->lock);
    if (done > p->done)
        p->done = done;
    if (message)
        copy_text(p->message, sizeof p->message, message);
    p->unshown = true;
    now = now_ns(p);
    if (p->options.mode == INVAR_PROGRESS_MODE_TERMINAL)
        pause = p->drawn ? REDRAW_NS : 0;
    else
        pause = (uint64_t)(p->options.interval_s * (double)SECOND_NS);
    if (now - p->shown >= pause)
        progress_draw(p, now, false);
    pthread_mutex_unlock(&p->lock);
}

void invar_progress_expect(invar_progress *p, double seconds)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->expected = seconds;
    p->expected_at = isfinite(seconds) ? now_ns(p) : 0;
    pthread_mutex_unlock(&p->lock);
}

void invar_progress_free(invar_progress *p)
{
    if (!p)
        return;
    if (p->drawn || p->unshown)
        progress_draw(p, now_ns(p), true);
    pthread_mutex_destroy(&p->lock);
    invar_free(p);
}
