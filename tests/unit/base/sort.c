/*
 * sort.c - invar_sort: ordered, stable, complete, for every length and many orders; and a search.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/sort.h"

#include <string.h>

#include "tests/support.h"

enum { MOST = 300 };

typedef struct item {
    uint32_t key;
    size_t place; /* before sorting */
} item;

static int by_key(const void *a, const void *b)
{
    const item *x = a, *y = b;

    return (x->key > y->key) - (x->key < y->key);
}

static void sort_and_check(size_t count, uint64_t seed, uint32_t keys)
{
    static item items[MOST];
    const void *order[MOST];
    bool seen[MOST] = {false};

    for (size_t i = 0; i < count; i++) {
        items[i] = (item){invar_test_random(seed, i) % keys, i};
        order[i] = &items[i];
    }
    assert_ok(invar_sort(order, count, by_key));
    for (size_t i = 0; i < count; i++) {
        const item *at = order[i], *before = i ? order[i - 1] : NULL;
        assert_false(seen[at->place]);
        seen[at->place] = true;
        if (before) {
            assert_true(before->key <= at->key);
            if (before->key == at->key)
                assert_true(before->place < at->place);
        }
    }
}

static void test_sort__orders_every_length(void **state)
{
    (void)state;
    for (size_t count = 0; count <= MOST; count++) {
        sort_and_check(count, count, 1000000);
        sort_and_check(count, count + 1000, 3); // many are equal
        sort_and_check(count, count, 1);        // all are
    }
}

static void test_sort__reverse(void **state)
{
    static item items[MOST];
    const void *order[MOST];

    (void)state;
    for (uint32_t i = 0; i < MOST; i++) {
        items[i].key = MOST - i;
        order[i] = &items[i];
    }
    assert_ok(invar_sort(order, MOST, by_key));
    for (uint32_t i = 0; i < MOST; i++)
        assert_ptr_equal(order[i], &items[MOST - 1 - i]);
}

/* Keys with gaps, in the middle of a row; what is between them, before and after is not there. */
static void test_sort__finds_what_is_there(void **state)
{
    struct {
        char before;
        int64_t key;
        char after;
    } rows[MOST];
    size_t row = sizeof rows[0], key_at = (size_t)((char *)&rows[0].key - (char *)rows);

    (void)state;
    for (int64_t i = 0; i < MOST; i++)
        rows[i].key = 3 * i - MOST;
    rows[0].key = INT64_MIN;
    for (int64_t count = 0; count <= MOST; count++) {
        for (int64_t i = 0; i < MOST; i++) {
            assert_int_equal(invar_binary_search(rows, count, row, key_at, rows[i].key),
                             i < count ? i : -1);
            assert_int_equal(invar_binary_search(rows, count, row, key_at, rows[i].key + 1), -1);
        }
        assert_int_equal(invar_binary_search(rows, count, row, key_at, INT64_MAX), -1);
    }
    assert_int_equal(invar_binary_search(NULL, 0, row, key_at, 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort__orders_every_length),
        cmocka_unit_test(test_sort__reverse),
        cmocka_unit_test(test_sort__finds_what_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
