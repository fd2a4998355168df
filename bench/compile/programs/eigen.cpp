// What the others are compared with.
#include <Eigen/Core>
int main() {}
