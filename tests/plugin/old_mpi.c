/*
 * old_mpi.c - an MPI module for another version of the engine.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/comm/module/mpi_module.h"

extern const invar_mpi_table INVAR_MPI_TABLE;
__attribute__((visibility("default"))) const invar_mpi_table INVAR_MPI_TABLE = {.abi = 99};
