// Makes a program that shows a difference as short as it gets.
#pragma once

#include "program.h"
#include "runner.h"

// `program` must mismatch; so does the result. Both allocators run from scratch for every attempt.
Program Shrink(Program program, Mutation mutation);
