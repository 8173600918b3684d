// A class of the program's own that is a BFC allocator of TensorFlow's.

#include <memory>

#include "xla/tsl/framework/bfc_allocator.h"

namespace {

class Derived : public tsl::BFCAllocator {
 public:
  Derived(std::unique_ptr<tsl::SubAllocator> source, bool *has_ended)
      : BFCAllocator(std::move(source), 1 << 20, "derived", Options()), has_ended_(has_ended) {}
  ~Derived() override { *has_ended_ = true; }

 private:
  bool *has_ended_;
};

}  // namespace

std::unique_ptr<tsl::BFCAllocator> make_derived(std::unique_ptr<tsl::SubAllocator> source, bool *has_ended) {
  return std::make_unique<Derived>(std::move(source), has_ended);
}
