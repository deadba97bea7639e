/*
 * sort.c - tests of the stable sort and the binary search, for every length up to 300.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/sort.h"

#include <string.h>

#include "tests/support.h"

enum { MAX_ITEMS = 300 };

typedef struct item {
    uint32_t key;
    size_t index; /* position before sorting */
} item;

static int by_key(const void *a, const void *b)
{
    const item *x = a, *y = b;

    return (x->key > y->key) - (x->key < y->key);
}

static void sort_and_check(size_t count, uint64_t seed, uint32_t n_keys)
{
    static item items[MAX_ITEMS];
    const void *order[MAX_ITEMS];
    bool seen[MAX_ITEMS] = {false};

    for (size_t i = 0; i < count; i++) {
        items[i] = (item){invar_test_random(seed, i) % n_keys, i};
        order[i] = &items[i];
    }
    assert_ok(invar_sort(order, count, by_key));
    for (size_t i = 0; i < count; i++) {
        const item *current = order[i], *previous = i ? order[i - 1] : NULL;
        assert_false(seen[current->index]);
        seen[current->index] = true;
        if (previous) {
            assert_true(previous->key <= current->key);
            if (previous->key == current->key)
                assert_true(previous->index < current->index);
        }
    }
}

static void test_sort__orders_every_length(void **state)
{
    (void)state;
    for (size_t count = 0; count <= MAX_ITEMS; count++) {
        sort_and_check(count, count, 1000000);
        sort_and_check(count, count + 1000, 3); // many equal keys
        sort_and_check(count, count, 1);        // all keys equal
    }
}

static void test_sort__reverses_descending_keys(void **state)
{
    static item items[MAX_ITEMS];
    const void *order[MAX_ITEMS];

    (void)state;
    for (uint32_t i = 0; i < MAX_ITEMS; i++) {
        items[i].key = MAX_ITEMS - i;
        order[i] = &items[i];
    }
    assert_ok(invar_sort(order, MAX_ITEMS, by_key));
    for (uint32_t i = 0; i < MAX_ITEMS; i++)
        assert_ptr_equal(order[i], &items[MAX_ITEMS - 1 - i]);
}

/* Keys with gaps, in the middle of a row. Control: values between and above them are not found. */
static void test_sort__finds_keys_with_gaps(void **state)
{
    struct {
        char before;
        int64_t key;
        char after;
    } rows[MAX_ITEMS];
    size_t row_bytes = sizeof rows[0], key_offset = (size_t)((char *)&rows[0].key - (char *)rows);

    (void)state;
    for (int64_t i = 0; i < MAX_ITEMS; i++)
        rows[i].key = 3 * i - MAX_ITEMS;
    rows[0].key = INT64_MIN;
    for (int64_t count = 0; count <= MAX_ITEMS; count++) {
        for (int64_t i = 0; i < MAX_ITEMS; i++) {
            assert_int_equal(invar_binary_search(rows, count, row_bytes, key_offset, rows[i].key),
                             i < count ? i : -1);
            assert_int_equal(
                invar_binary_search(rows, count, row_bytes, key_offset, rows[i].key + 1), -1);
        }
        assert_int_equal(invar_binary_search(rows, count, row_bytes, key_offset, INT64_MAX), -1);
    }
    assert_int_equal(invar_binary_search(NULL, 0, row_bytes, key_offset, 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort__orders_every_length),
        cmocka_unit_test(test_sort__reverses_descending_keys),
        cmocka_unit_test(test_sort__finds_keys_with_gaps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
