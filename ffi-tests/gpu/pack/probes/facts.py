"""Facts: what the driver answers where its manual leaves the answer open, or where the answer depends on the device. There is
no right answer; the JSON object that each fact returns is meant to be read by itself."""

# In the order in which they are listed.
import facts_device
import facts_capture
import facts_memory
import facts_waits
import facts_handles
import facts_contexts
