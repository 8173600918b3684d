// printf into a std::string.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

inline std::string FormatList(const char *format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

__attribute__((format(printf, 1, 2))) inline std::string Format(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string text = FormatList(format, arguments);
  va_end(arguments);
  return text;
}
