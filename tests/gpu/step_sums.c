/*
 * step_sums.c - hashes of the tensor-core step over the tiles of step/tiles.h, on the host.
 *
 *   step_sums simd|portable|reference TILES
 *
 * Prints `form family tiles hash` per family; tensorcore.c writes the same lines on a device. The
 * program is linked without a test library, so that it runs as a cross build in an emulator, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "tests/step_run.h"

int main(int argc, char **argv)
{
    static invar_step_tile tile;
    const char *implementation = argc == 3 ? argv[1] : "";
    bool reference = strcmp(implementation, "reference") == 0,
         portable = strcmp(implementation, "portable") == 0;
    uint64_t tiles = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    void *workspace;

    if (tiles == 0 || (!reference && !portable && strcmp(implementation, "simd") != 0)) {
        fprintf(stderr, "usage: step_sums simd|portable|reference TILES\n");
        return 129;
    }
    if (invar_alloc(&workspace, 1, INVAR_CHAIN_WORKSPACE, "step_sums") != INVAR_OK) {
        fprintf(stderr, "step_sums: %s\n", invar_error_last()->message);
        return 2;
    }
    for (int form = 0; form < INVAR_TILE_FORMS; form++)
        for (int family = 0; family < INVAR_TILE_FAMILIES; family++) {
            uint64_t hash = 0;
            for (uint64_t n = 0; n < tiles; n++) {
                tile_outputs d;
                invar_tile_make(&tile, (invar_tile_form)form, family, n);
                if (reference)
                    tile_reference(d, &tile, (invar_tile_form)form);
                else
                    tile_product(d, &tile, (invar_tile_form)form,
                                 portable ? INVAR_CPU_PATH_PORTABLE : INVAR_CPU_PATH_SIMD,
                                 workspace);
                hash = tile_hash(hash, &d[0][0]);
            }
            printf("%s %s %" PRIu64 " %016" PRIx64 "\n", form == INVAR_TILE_BF16 ? "bf16" : "e4m3",
                   invar_tile_family_names[family], tiles, hash);
        }
    invar_free(workspace);
    return fflush(stdout) != 0;
}
