# What `cmake --install` puts where. Headers, package files and frugal.pc do not depend on the machine; the compiled kernels
# are a component of their own (`cmake --install DIR --component kernels`) and are off unless FRUGAL_INSTALL_KERNELS is on.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(frugal_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/frugal")

install(TARGETS frugal EXPORT frugalTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/frugal" DESTINATION include COMPONENT headers
  FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
install(EXPORT frugalTargets NAMESPACE frugal:: DESTINATION "${frugal_package_dir}" COMPONENT headers)

if(TARGET frugal_kernels AND FRUGAL_INSTALL_KERNELS)
  set_target_properties(frugal_kernels PROPERTIES EXPORT_NAME kernels)
  install(TARGETS frugal_kernels EXPORT frugalKernelsTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT kernels)
  if(TARGET frugal_models)
    set_target_properties(frugal_models PROPERTIES EXPORT_NAME models)
    install(TARGETS frugal_models EXPORT frugalKernelsTargets ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT kernels)
  endif()
  install(EXPORT frugalKernelsTargets NAMESPACE frugal:: DESTINATION "${frugal_package_dir}" COMPONENT kernels)
endif()

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/frugalConfig.cmake.in" "${PROJECT_BINARY_DIR}/frugalConfig.cmake"
  INSTALL_DESTINATION "${frugal_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/frugalConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/frugalConfig.cmake" "${PROJECT_BINARY_DIR}/frugalConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/FindXRT.cmake" "${CMAKE_CURRENT_LIST_DIR}/FrugalInstructionSet.cmake" DESTINATION "${frugal_package_dir}" COMPONENT headers)

configure_file("${CMAKE_CURRENT_LIST_DIR}/frugal.pc.in" "${PROJECT_BINARY_DIR}/frugal.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/frugal.pc" DESTINATION "${CMAKE_INSTALL_DATADIR}/pkgconfig" COMPONENT headers)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/frugal" COMPONENT headers)
