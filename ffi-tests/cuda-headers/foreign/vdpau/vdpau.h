/* What cudaVDPAU.h takes of VDPAU, which the machine need not have. */
#include <stdint.h>
typedef uint32_t VdpDevice;
typedef uint32_t VdpVideoSurface;
typedef uint32_t VdpOutputSurface;
/* A function, in truth. cuda-sys only passes its address on, as a void *. */
typedef void VdpGetProcAddress;
