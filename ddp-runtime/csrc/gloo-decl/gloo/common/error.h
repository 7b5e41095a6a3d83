// See algorithm.h in the folder above.
#pragma once
