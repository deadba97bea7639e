/*
 * kv_cache.c - tests of the KV cache: layout, allocation and reference counts of pages, copies.
 *
 * The copy test fills each element with a value that identifies its position and checks all of
 * them, so that a write outside of the copied rows is detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/sample/rollout/kv_cache.h"
#include "tests/support.h"

static const invar_kv_cache_shape base_shape = {.layers = 3,
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
    bad = base_shape, bad.pages = 0;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "0 pages");
    bad = base_shape, bad.page_size = 0;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "out of range");
    bad = base_shape, bad.page_size = INT64_MAX / 8;
    assert_fails(new_cache(&cache, &bad), INVAR_E_INVALID, "out of range");
    bad = base_shape, bad.pages = INT32_MAX, bad.page_size = (int64_t)1 << 40;
    assert_fails(new_cache(&cache, &bad), INVAR_E_NOMEM, "KV cache");
    assert_null(cache);
    invar_kv_cache_free(NULL);
}

static void test_cache__layers_do_not_overlap(void **state)
{
    invar_kv_cache *cache;
    size_t bytes = 7 * 4 * 2 * 5 * 2;
    const char *previous;

    (void)state;
    assert_ok(new_cache(&cache, &base_shape));
    assert_int_equal(invar_kv_cache_page_bytes(&base_shape) * 7, 6 * bytes);
    previous = (const char *)cache->memory - bytes;
    for (int64_t i = 0; i < base_shape.layers; i++) {
        const invar_tensor *kv[2] = {&cache->layers[i].k, &cache->layers[i].v};
        for (int n = 0; n < 2; n++) {
            assert_ptr_equal(kv[n]->data, previous + bytes);
            assert_int_equal(kv[n]->rank, 4);
            assert_int_equal(kv[n]->shape[0], 7);
            assert_int_equal(kv[n]->shape[1], 4);
            assert_int_equal(kv[n]->row_stride, 4 * 2 * 5);
            previous = kv[n]->data;
        }
    }
    invar_kv_cache_free(cache);
}

static void test_cache__allocates_all_or_nothing(void **state)
{
    invar_kv_cache *cache;
    int32_t pages[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    bool used[7] = {false};

    (void)state;
    assert_ok(new_cache(&cache, &base_shape));
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
        assert_false(used[pages[i]]);
        used[pages[i]] = true;
    }
    assert_int_equal(cache->max_used, 7);
    invar_kv_cache_free_pages(cache, pages, 7);
    assert_int_equal(cache->n_free, 7);
    assert_int_equal(cache->max_used, 7);
    invar_kv_cache_reset(cache);
    assert_int_equal(cache->max_used, 0);
    invar_kv_cache_free(cache);
}

static void test_cache__a_page_is_free_without_references(void **state)
{
    invar_kv_cache *cache;
    int32_t pages[3], others[7];

    (void)state;
    assert_ok(new_cache(&cache, &base_shape));
    assert_true(invar_kv_cache_alloc_pages(pages, cache, 3));
    invar_kv_cache_ref_pages(cache, pages, 2);
    invar_kv_cache_ref_pages(cache, pages, 1);
    invar_kv_cache_free_pages(cache, pages, 3); // the first reference is dropped
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
    invar_kv_cache_reset(cache); // frees all pages, whatever their references
    assert_true(invar_kv_cache_alloc_pages(others, cache, 7));
    invar_kv_cache_free(cache);
}

/* Returns a value that identifies the element's position. */
static uint16_t position_tag(int64_t slab, int64_t element)
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
        assert_ok(new_cache(&cache, &base_shape));
        for (int64_t s = 0; s < 6; s++)
            for (int64_t e = 0; e < 7 * PAGE; e++)
                slab_of(cache, s)[e] = position_tag(s, e);
        assert_ok(invar_kv_cache_copy(cache, TO, FROM, rows));
        for (int64_t s = 0; s < 6; s++)
            for (int64_t e = 0; e < 7 * PAGE; e++) {
                bool copied = e >= TO * PAGE && e < TO * PAGE + rows * ROW;
                assert_int_equal(slab_of(cache, s)[e],
                                 position_tag(s, copied ? e - (TO - FROM) * PAGE : e));
            }
        invar_kv_cache_free(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache__refuses_impossible_shapes),
        cmocka_unit_test(test_cache__layers_do_not_overlap),
        cmocka_unit_test(test_cache__allocates_all_or_nothing),
        cmocka_unit_test(test_cache__a_page_is_free_without_references),
        cmocka_unit_test(test_cache__copies_the_first_rows_of_all_layers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
