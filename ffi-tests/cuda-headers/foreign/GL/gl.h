/* What cudaGL.h takes of OpenGL, which the machine need not have. */
typedef unsigned int GLenum;
typedef unsigned int GLuint;
