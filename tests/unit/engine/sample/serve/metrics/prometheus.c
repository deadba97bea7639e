/*
 * prometheus.c - tests of Prometheus' text format: escapes, integers, NaN and infinities.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/metrics/prometheus.h"

#include <math.h>
#include <string.h>

#include "tests/support.h"

static void assert_text(invar_json_text *text, const char *expected)
{
    assert_ok(text->status);
    assert_int_equal(text->bytes, strlen(expected));
    assert_memory_equal(text->data, expected, text->bytes);
    invar_json_text_release(text);
    *text = (invar_json_text){0};
}

static void test_prometheus__escapes(void **state)
{
    const invar_prometheus_label labels[] = {{"a", "q\"b\\s\nn\xC3\xA4"}, {"b", ""}};
    invar_json_text text = {0};

    (void)state;
    invar_prometheus_family(&text, "invar_x", "gauge", "a \"quote\", a \\ and\na line");
    assert_text(&text, "# HELP invar_x a \"quote\", a \\\\ and\\na line\n# TYPE invar_x gauge\n");
    invar_prometheus_value(&text, "invar_x", labels, 2, 0.1);
    assert_text(&text, "invar_x{a=\"q\\\"b\\\\s\\nn\xC3\xA4\",b=\"\"} 0.1\n");
    invar_prometheus_value(&text, "invar_x", NULL, 0, 1.0);
    assert_text(&text, "invar_x 1\n");
}

static void test_prometheus__prints_integers_as_integers(void **state)
{
    const struct {
        double value;
        const char *line;
    } cases[] = {{20.0, "x 20\n"},
                 {100000.0, "x 100000\n"},
                 {9007199254740991.0, "x 9007199254740991\n"},
                 {-3.0, "x -3\n"},
                 {0.5, "x 0.5\n"}};
    invar_json_text text = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_prometheus_value(&text, "x", NULL, 0, cases[i].value);
        assert_text(&text, cases[i].line);
    }
}

static void test_prometheus__nan_infinity_and_extremes(void **state)
{
    const struct {
        double value;
        const char *line;
    } cases[] = {{(double)NAN, "x NaN\n"}, {HUGE_VAL, "x +Inf\n"}, {-HUGE_VAL, "x -Inf\n"},
                 {-0.0, "x -0\n"},         {5e-324, "x 5e-324\n"}, {1e300, "x 1e+300\n"}};
    invar_json_text text = {0};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_prometheus_value(&text, "x", NULL, 0, cases[i].value);
        assert_text(&text, cases[i].line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prometheus__escapes),
        cmocka_unit_test(test_prometheus__prints_integers_as_integers),
        cmocka_unit_test(test_prometheus__nan_infinity_and_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
