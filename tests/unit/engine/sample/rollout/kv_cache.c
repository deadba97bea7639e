/*
 * kv_cache.c - pages of the KV cache: who holds them, when they are free, what a copy takes along.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/rollout/kv_cache.h"
#include "tests/support.h"

static const invar_kv_cache_shape small = {.layers = 3,
                                           .kv_heads = 2,
                                           .head_dim = 5,
                                           .storage = INVAR_DTYPE_BF16,
                                           .page_size = 4,
                                           .pages = 7};

static invar_status new_cache(invar_kv_cache **out, const invar_kv_cache_shape *shape)
{
    const invar_device dev = {.backend = invar_backend_cpu()};

    return invar_kv_cache_new(out, shape, &dev);
}

static void test_cache__refuses_impossible_shapes(void **state)
{
    invar_kv_cache *cache = NULL;
    invar_kv_cache_shape bad;

    (void)state;
    bad = small, bad.pages = 0;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "0 pages");
    bad = small, bad.page_size = 0;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "out of range");
    bad = small, bad.page_size = INT64_MAX / 8;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "out of range");
    bad = small, bad.pages = INT32_MAX, bad.page_size = (int64_t)1 << 40;
    assert_fails(new_cache(&cache, &bad), INVAR_E_NOMEM, "KV cache");
    assert_null(cache);
    invar_kv_cache_free(NULL);
}

static void test_cache__layers_do_not_overlap(void **state)
{
    invar_kv_cache *cache;
    size_t bytes = 7 * 4 * 2 * 5 * 2;
    const char *before;

    (void)state;
    assert_ok(new_cache(&cache, &small));
    assert_int_equal(invar_kv_cache_page_bytes(&small) * 7, 6 * bytes);
    before = (const char *)cache->memory - bytes;
    for (int64_t i = 0; i < small.layers; i++) {
        const invar_tensor *of[2] = {&cache->layers[i].k, &cache->layers[i].v};
        for (int n = 0; n < 2; n++) {
            assert_ptr_equal(of[n]->data, before + bytes);
            assert_int_equal(of[n]->rank, 4);
            assert_int_equal(of[n]->shape[0], 7);
            assert_int_equal(of[n]->shape[1], 4);
            assert_int_equal(of[n]->row_stride, 4 * 2 * 5);
            before = of[n]->data;
        }
    }
    invar_kv_cache_free(cache);
}

static void test_cache__takes_all_or_nothing(void **state)
{
    invar_kv_cache *cache;
    int32_t pages[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    bool seen[7] = {false};

    (void)state;
    assert_ok(new_cache(&cache, &small));
    assert_int_equal(invar_kv_cache_pages_for(cache, 0), 0);
    assert_int_equal(invar_kv_cache_pages_for(cache, 1), 1);
    assert_int_equal(invar_kv_cache_pages_for(cache, 4), 1);
    assert_int_equal(invar_kv_cache_pages_for(cache, 5), 2);
    assert_false(invar_kv_cache_alloc_pages(pages, cache, 8));
    assert_int_equal(pages[0], -1);
    assert_int_equal(cache->n_free, 7);
    assert_true(invar_kv_cache_alloc_pages(pages, cache, 5));
    assert_false(invar_kv_cache_alloc_pages(pages + 5, cache, 3));
    assert_true(invar_kv_cache_alloc_pages(pages + 5, cache, 2));
    for (int i = 0; i < 7; i++) {
        assert_in_range(pages[i], 0, 6);
        assert_false(seen[pages[i]]);
        seen[pages[i]] = true;
    }
    assert_int_equal(cache->max_used, 7);
    invar_kv_cache_free_pages(cache, pages, 7);
    assert_int_equal(cache->n_free, 7);
    assert_int_equal(cache->max_used, 7);
    invar_kv_cache_reset(cache);
    assert_int_equal(cache->max_used, 0);
    invar_kv_cache_free(cache);
}

static void test_cache__a_page_is_free_without_holders(void **state)
{
    invar_kv_cache *cache;
    int32_t pages[3], others[7];

    (void)state;
    assert_ok(new_cache(&cache, &small));
    assert_true(invar_kv_cache_alloc_pages(pages, cache, 3));
    invar_kv_cache_ref_pages(cache, pages, 2);
    invar_kv_cache_ref_pages(cache, pages, 1);
    invar_kv_cache_free_pages(cache, pages, 3); // the first holder goes
    assert_int_equal(cache->n_free, 5);
    invar_kv_cache_free_pages(cache, pages, 2);
    assert_int_equal(cache->n_free, 6);
    assert_true(invar_kv_cache_alloc_pages(others, cache, 6));
    for (int i = 0; i < 6; i++)
        assert_int_not_equal(others[i], pages[0]);
    assert_false(invar_kv_cache_alloc_pages(others + 6, cache, 1));
    invar_kv_cache_free_pages(cache, pages, 1);
    assert_true(invar_kv_cache_alloc_pages(others + 6, cache, 1));
    assert_int_equal(others[6], pages[0]);
    invar_kv_cache_reset(cache); // whoever holds them
    assert_true(invar_kv_cache_alloc_pages(others, cache, 7));
    invar_kv_cache_free(cache);
}

/* The value of an element: where it lies. */
static uint16_t tag(int64_t slab, int64_t element)
{
    return (uint16_t)(slab * 1000 + element);
}

static uint16_t *slab_of(const invar_kv_cache *cache, int64_t slab)
{
    const invar_kv_pages *layer = &cache->layers[slab / 2];

    return slab % 2 ? layer->v.data : layer->k.data;
}

static void test_cache__copies_the_first_rows_of_all_layers(void **state)
{
    enum { PAGE = 4 * 2 * 5, ROW = 2 * 5, FROM = 2, TO = 5 };

    (void)state;
    for (int64_t rows = 0; rows <= 4; rows++) {
        invar_kv_cache *cache;
        assert_ok(new_cache(&cache, &small));
        for (int64_t s = 0; s < 6; s++)
            for (int64_t e = 0; e < 7 * PAGE; e++)
                slab_of(cache, s)[e] = tag(s, e);
        assert_ok(invar_kv_cache_copy(cache, TO, FROM, rows));
        for (int64_t s = 0; s < 6; s++)
            for (int64_t e = 0; e < 7 * PAGE; e++) {
                bool copied = e >= TO * PAGE && e < TO * PAGE + rows * ROW;
                assert_int_equal(slab_of(cache, s)[e], tag(s, copied ? e - (TO - FROM) * PAGE : e));
            }
        invar_kv_cache_free(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache__refuses_impossible_shapes),
        cmocka_unit_test(test_cache__layers_do_not_overlap),
        cmocka_unit_test(test_cache__takes_all_or_nothing),
        cmocka_unit_test(test_cache__a_page_is_free_without_holders),
        cmocka_unit_test(test_cache__copies_the_first_rows_of_all_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
