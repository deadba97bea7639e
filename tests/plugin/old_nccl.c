/*
 * old_nccl.c - an NCCL module for another version of the engine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/nccl_module.h"

extern const invar_nccl_table INVAR_NCCL_TABLE;
__attribute__((visibility("default"))) const invar_nccl_table INVAR_NCCL_TABLE = {.abi = 99};
